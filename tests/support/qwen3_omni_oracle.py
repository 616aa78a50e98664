"""What transformers' own `generate` makes of a tiny Qwen3-Omni checkpoint, stage by stage.

Greedy. Every answer is computed once in a test run.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3OmniMoeForConditionalGeneration,
    Qwen3OmniMoeProcessor,
)

SAMPLE_RATE = 16000


@dataclass(frozen=True)
class Tone:
    """A sound for a prompt: a sine."""

    seconds: float = 1.3
    hertz: float = 127.0

    def samples(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """float32 [samples] at 16 kHz."""
        time = np.arange(int(self.seconds * SAMPLE_RATE)) / SAMPLE_RATE
        return (0.3 * np.sin(2 * np.pi * self.hertz * time)).astype(np.float32)


@dataclass(frozen=True)
class Prompt:
    """A formatted prompt; its sounds stand where the audio placeholders are."""

    text: str
    tones: tuple[Tone, ...] = ()


@dataclass(frozen=True)
class Oracle:
    """One request. P prompt tokens, O text tokens, T talker tokens, n rows of talker prompt."""

    prompt: list[int]  # P, each placeholder as often as its sound has positions
    text: list[int]  # O, the end token included if there was one
    embeds: torch.Tensor  # [P + O - 1, thinker hidden]: the last token is never forwarded
    hidden: torch.Tensor  # [P + O - 1, thinker hidden], of the layer that the talker accepts
    talker_prompt: torch.Tensor  # [n, talker hidden]
    trailing: torch.Tensor  # [O - 1, talker hidden]: text behind the first token, end of text
    padding: torch.Tensor  # [talker hidden]
    talker: list[int]  # T, the end token included if there was one
    codes: torch.Tensor  # int64 [T - 1, groups]: transformers makes no frame of the last token
    waveform: torch.Tensor  # float32 [samples]


@functools.cache
def reference(folder: str) -> Qwen3OmniMoeForConditionalGeneration:
    """The checkpoint in transformers, float32."""
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@functools.cache
def tokenizer(folder: str) -> PreTrainedTokenizerFast:
    """The checkpoint's tokenizer, which also has its chat template."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


@functools.cache
def processor(folder: str) -> Qwen3OmniMoeProcessor:
    """The checkpoint's processor; it needs torchvision."""
    return Qwen3OmniMoeProcessor.from_pretrained(folder)


def chat(folder: str, *parts: str | Tone, system: str = "be kind") -> Prompt:
    """The prompt of a conversation with one message of the user, made of these parts."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "audio"}
        for part in parts
    ]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": content}]
    text = tokenizer(folder).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    return Prompt(text, tuple(part for part in parts if isinstance(part, Tone)))


def prompt_ids(folder: str, prompt: Prompt) -> list[int]:
    """Token ids of a prompt without sounds."""
    assert not prompt.tones
    return list(tokenizer(folder)(prompt.text)["input_ids"])


@functools.cache
def generate(  # noqa: PLR0917  a cache tells keywords apart by their order
    folder: str,
    prompt: Prompt,
    text_tokens: int,
    talker_tokens: int,
    speaker: str = "Ethan",
    penalty: float = 1.0,
) -> Oracle:
    """What transformers makes of a prompt, with at most so many tokens of text and speech.

    `penalty` is the talker's repetition penalty.
    """
    model = reference(folder)
    inputs = _model_inputs(folder, prompt)
    ids = inputs["input_ids"]
    with _captured(model.thinker) as thinker, _captured(model.talker) as talker:
        sequences, waveform = model.generate(
            **inputs,
            speaker=speaker,
            thinker_max_new_tokens=text_tokens,
            thinker_eos_token_id=model.config.im_end_token_id,
            thinker_do_sample=False,
            talker_max_new_tokens=talker_tokens,
            talker_do_sample=False,
            talker_repetition_penalty=penalty,
        )
    steps = thinker.result.hidden_states
    accepted = model.config.talker_config.accept_hidden_layer
    frames = [step[-1] for step in talker.result.hidden_states if step[-1] is not None]
    return Oracle(
        prompt=ids[0].tolist(),
        text=sequences[0, ids.shape[1] :].tolist(),
        embeds=torch.cat([step[0] for step in steps], dim=1)[0],
        hidden=torch.cat([step[accepted] for step in steps], dim=1)[0],
        talker_prompt=talker.given["inputs_embeds"][0],
        trailing=talker.given["trailing_text_hidden"][0],
        padding=talker.given["tts_pad_embed"][0, 0],
        talker=talker.result.sequences[0].tolist(),
        codes=torch.cat(frames),
        waveform=waveform[0, 0],
    )


def late_code(folder: str, prompt: Prompt, text_tokens: int, talker_tokens: int) -> int:
    """The talker token of a prompt that occurs first after most others: a natural end."""
    talker = generate(folder, prompt, text_tokens, talker_tokens).talker
    return max(set(talker), key=talker.index)


@dataclass
class _Call:
    given: dict[str, Any]
    result: Any = None


@contextmanager
def _captured(module: Any) -> Iterator[_Call]:
    """What `module.generate` is called with and returns, meanwhile."""
    call = _Call({})

    def capturing(**given: Any) -> Any:
        call.given = given
        call.result = type(module).generate(module, **given)
        return call.result

    module.generate = capturing
    try:
        yield call
    finally:
        del module.generate


def _model_inputs(folder: str, prompt: Prompt) -> dict[str, torch.Tensor]:
    if not prompt.tones:
        ids = torch.tensor([prompt_ids(folder, prompt)])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    sounds = [tone.samples() for tone in prompt.tones]
    return dict(
        processor(folder)(
            text=prompt.text, audio=sounds, sampling_rate=SAMPLE_RATE, return_tensors="pt"
        )
    )
