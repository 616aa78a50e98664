"""The talker's grammar as a logits processor of vLLM.

It works on the whole batch: one pass over the requests to see what was sampled, then a handful of
operations on the batch's logits. Everything it knows about a request follows from its prompt and
output ids, so a request that was preempted, moved or resumed is read again and goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from antiphon.models.voice.reading import Allowed, Reading
from antiphon.models.voice.vocabulary import FIRST_CODE

SWITCH = "talker_grammar"
"""The key in `SamplingParams.extra_args` that turns the grammar on for a request."""

_NEVER = float("-inf")


class TalkerGrammar(LogitsProcessor):
    """Allows any code, or exactly the next id that the reading must repeat; see `Reading`."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._max_model_len = vllm_config.model_config.max_model_len
        self._readings: dict[int, Reading] = {}

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        value = (sampling_params.extra_args or {}).get(SWITCH, False)
        if not isinstance(value, bool):
            # the type that upstream's contract asks for
            raise ValueError(f"{SWITCH} must be true or false, not {value!r}")  # noqa: TRY004

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._readings, batch_update, self._open)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask `logits` [num_requests, vocabulary] in place."""
        if not self._readings:
            return logits
        if len(self._readings) == logits.shape[0]:
            self._mask(logits, [self._readings[row].allowed() for row in range(logits.shape[0])])
            return logits
        rows = torch.tensor(list(self._readings), device=self._device)
        governed = logits[rows]
        self._mask(governed, [reading.allowed() for reading in self._readings.values()])
        logits[rows] = governed
        return logits

    def _mask(self, logits: torch.Tensor, steps: list[Allowed]) -> None:
        """Mask `logits` [len(steps), vocabulary] in place, row by row as `steps` say."""
        phonemes = logits[:, :FIRST_CODE]
        # the score of "go on to the next phoneme" is the best phoneme's: which one it is, is known
        score = phonemes.amax(1, keepdim=True)
        phonemes.fill_(_NEVER)
        for row, step in enumerate(steps):
            if not step.repeat:
                score[row] = _NEVER
            if not step.code:
                logits[row, FIRST_CODE:] = _NEVER
        repeat = torch.tensor([[step.repeat_id] for step in steps], device=self._device)
        logits.scatter_(1, repeat, score)

    def _open(
        self, params: SamplingParams, prompt: list[int] | None, output: Sequence[int]
    ) -> Reading | None:
        if prompt is None or not (params.extra_args or {}).get(SWITCH):
            return None
        room = self._max_model_len - len(prompt)
        if params.max_tokens is not None:
            room = min(room, params.max_tokens)
        return Reading(prompt, output, room)
