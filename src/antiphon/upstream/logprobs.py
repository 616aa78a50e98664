"""Seam: where a step's sampled logprobs lie.

Reason: they are checked before upstream's loop reads them. Names used: `ModelRunnerOutput.logprobs`
(`LogprobsLists`: `logprob_token_ids`, `logprobs`, `cu_num_generated_tokens`), `sampled_token_ids`,
`req_id_to_index`. Fallback: none; without the arrays the contract cannot be checked.
"""

from __future__ import annotations

from vllm.v1.outputs import ModelRunnerOutput

from antiphon.core.logprobs import Violation, validate


def sampled_logprob_violation(output: ModelRunnerOutput, uid: str) -> Violation | None:
    """What is wrong with the logprobs of one request in this step, if anything."""
    index = output.req_id_to_index[uid]
    sampled = output.sampled_token_ids[index] if output.sampled_token_ids else []
    if not sampled:
        return None
    if output.logprobs is None:
        return validate(sampled, None, None)
    lists = output.logprobs
    starts = lists.cu_num_generated_tokens
    first = index if starts is None else starts[index]
    rows = slice(first, first + len(sampled))
    return validate(sampled, lists.logprob_token_ids[rows], lists.logprobs[rows])
