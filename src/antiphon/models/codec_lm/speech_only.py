"""Keeps a language model to codes and to what ends a speech, as a logits processor of vLLM.

`allowed_token_ids` would say the same with each request: tens of thousands of ids to send, to check
and to make a mask of. Here the stage knows them once.
"""

from __future__ import annotations

import torch
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

from antiphon.models.codec_lm.tokens import read_speech_tokens

_NEVER = float("-inf")


class SpeechOnly(LogitsProcessor):
    """The same for every request of the stage; nothing is kept of any."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        speech = read_speech_tokens(vllm_config.model_config.model)
        self._first, self._stop = speech.first, speech.first + speech.count
        self._ends = torch.tensor(speech.ends, device=device)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask `logits` [num_requests, vocabulary] in place: two fills, no mask to read."""
        ends = logits[:, self._ends]
        logits[:, : self._first] = _NEVER
        logits[:, self._stop :] = _NEVER
        logits[:, self._ends] = ends
        return logits
