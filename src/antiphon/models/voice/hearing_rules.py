"""What transformers' `generate` forbids and forces while Whisper writes, as a logits processor of
vLLM. It reads the checkpoint's `generation_config.json`.

The prompt of a window is the start token alone, so the first sampled token follows it: that is
where Whisper says whether there is speech at all. If there is none, the transcript ends with that
token; else it is `<|notimestamps|>`, which leaves no text. Everything follows from how many tokens
a request has: one that was preempted goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from antiphon.errors import ModelUnavailableError

SWITCH = "hearing_rules"
"""The key in `SamplingParams.extra_args` that turns the rules on for a request."""

NO_SPEECH = 0.6
"""Probability of `<|nospeech|>` above which a window counts as silent: OpenAI's threshold.

OpenAI's code and transformers want an improbable transcript as well. It is left out: silence, noise
and hum have 0.7 and more with tiny.en, speech has less than 0.3, also if it is soft or noisy.
"""

_NEVER = float("-inf")


class HearingRules(LogitsProcessor):
    """Applies to requests whose parameters have `SWITCH`."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        config = vllm_config.model_config.try_get_generation_config()
        if config.get("is_multilingual", True):
            raise ModelUnavailableError(
                "hearing is set up for English alone, and the checkpoint is a Whisper of many"
                " languages; give one that ends in .en"
            )
        try:
            self._end = int(config["eos_token_id"])
            self._no_timestamps = int(config["no_timestamps_token_id"])
            never, first = config["suppress_tokens"], config["begin_suppress_tokens"]
        except KeyError as error:
            raise ModelUnavailableError(
                f"the checkpoint's generation_config.json has no {error.args[0]}; give one of"
                " Whisper for English"
            ) from error
        # As transformers counts it: the last one before the timestamps begin is <|notimestamps|>.
        self._no_speech = self._no_timestamps - 1
        self._never = torch.tensor(sorted(never), device=device)
        self._first = torch.tensor(sorted({*never, *first}), device=device)
        self._outputs: dict[int, Sequence[int]] = {}

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        value = (sampling_params.extra_args or {}).get(SWITCH, False)
        if not isinstance(value, bool):
            # the type that upstream's contract asks for
            raise ValueError(f"{SWITCH} must be true or false, not {value!r}")  # noqa: TRY004

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._outputs, batch_update, self._open)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask `logits` [num_requests, vocabulary] in place."""
        for row, output in self._outputs.items():
            if not output:
                self._begin(logits[row])
            else:
                logits[row, self._first if len(output) == 1 else self._never] = _NEVER
        return logits

    def _begin(self, logits: torch.Tensor) -> None:
        """The token behind the start token, [vocabulary]."""
        silent = bool(logits.float().softmax(-1)[self._no_speech] > NO_SPEECH)
        token = self._end if silent else self._no_timestamps
        logits.fill_(_NEVER)
        logits[token] = 0.0

    @staticmethod
    def _open(
        params: SamplingParams, prompt: list[int] | None, output: Sequence[int]
    ) -> Sequence[int] | None:
        return output if (params.extra_args or {}).get(SWITCH) else None
