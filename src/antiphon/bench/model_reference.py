"""transformers' own `generate` over a tiny Qwen3-Omni checkpoint, as `bench model` measures it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3OmniMoeForConditionalGeneration
from transformers.utils import logging

from antiphon.bench.model import FRAMES, SPEAKER, TEXT_TOKENS, Generated
from antiphon.models.qwen3_omni.tiny import write_tiny


def prepare(folder: Path, threads: int) -> Reference:
    """Write the checkpoint into `folder` and load it into transformers."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    write_tiny(folder)
    return Reference(folder, threads)


class Reference:
    """The model in this process, float32, greedy, on `threads` threads."""

    def __init__(self, folder: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self.threads = threads
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, padding_side="left")
        loaded: Any = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32
        )
        self._model: Any = loaded.eval()

    def generate(self, questions: Sequence[str]) -> Generated:
        """Answer all of them in one batch."""
        chats = [[{"role": "user", "content": question}] for question in questions]
        began = time.perf_counter()
        inputs = self._tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt"
        )
        ids = inputs["input_ids"]
        _, waveforms = self._model.generate(
            input_ids=ids,
            attention_mask=inputs["attention_mask"],
            thinker_max_new_tokens=TEXT_TOKENS,
            thinker_eos_token_id=-1,
            thinker_do_sample=False,
            talker_max_new_tokens=FRAMES + 1,  # it makes no frame of the last token
            talker_do_sample=False,
            speaker=SPEAKER,
            talker_repetition_penalty=1.0,
        )
        seconds = time.perf_counter() - began
        return Generated(seconds, [wave.float().flatten().numpy() for wave in waveforms])
