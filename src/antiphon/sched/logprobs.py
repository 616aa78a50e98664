"""The sampled-logprob contract at the scheduler: which requests it holds for, and who breaks it."""

from __future__ import annotations

from collections.abc import Mapping

from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from antiphon.errors import SampledLogprobContractError
from antiphon.upstream.logprobs import sampled_logprob_violation


class LogprobWatch:
    """The requests that asked for logprobs."""

    def __init__(self) -> None:
        self._uids: set[str] = set()

    def note(self, request: Request) -> None:
        """The request enters the queue, for the first time or with new parameters."""
        params = request.sampling_params
        if params is not None and params.logprobs is not None:
            self._uids.add(request.request_id)
        else:
            self._uids.discard(request.request_id)

    def forget(self, uid: str) -> None:
        """The request is over."""
        self._uids.discard(uid)

    def violations(
        self, output: ModelRunnerOutput, requests: Mapping[str, Request]
    ) -> list[tuple[str, SampledLogprobContractError]]:
        """Who breaks the contract in this step. Output that upstream will drop is not judged: it
        may be of an earlier segment, which had other parameters.
        """
        found = []
        for uid in self._uids & output.req_id_to_index.keys():
            request = requests[uid]
            if request.num_stale_output_tokens and request.drop_stale_output:
                continue
            if (violation := sampled_logprob_violation(output, uid)) is not None:
                found.append((uid, SampledLogprobContractError(violation.message)))
        return found

    def __bool__(self) -> bool:
        return bool(self._uids)

    def check_integrity(self, requests: Mapping[str, Request]) -> None:
        """Raise AssertionError if a request that is gone is watched."""
        if not self._uids <= requests.keys():
            raise AssertionError("logprobs are expected of a request that is gone")
