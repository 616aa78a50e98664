"""What transformers' own `generate` makes of a tiny Qwen2.5-Omni checkpoint, stage by stage.

Greedy, without repetition penalty unless a test asks for one. Every answer is computed once in a
test run.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5OmniForConditionalGeneration,
    Qwen2_5OmniProcessor,
)

from qwen3_omni_oracle import SAMPLE_RATE, Tone

PAD = 3  # any id will do where nobody looks


@dataclass(frozen=True)
class Heard:
    """A formatted prompt with sounds, which stand where the audio placeholders are."""

    text: str
    tones: tuple[Tone, ...]


@dataclass(frozen=True)
class Oracle:
    """One request. P prompt tokens, O text tokens, T talker tokens."""

    prompt: list[int]  # P
    text: list[int]  # O, the end token included if there was one
    rows: torch.Tensor  # [P + O - 1, thinker hidden], embedding + last hidden state
    hidden: torch.Tensor  # the same without the embedding
    talker: list[int]  # T, the end token included if there was one
    codes: list[int]  # the same without the end token
    waveform: torch.Tensor  # float32 [samples]


@functools.cache
def reference(folder: str) -> Any:
    """The checkpoint in transformers, float32."""
    model = Qwen2_5OmniForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@functools.cache
def tokenizer(folder: str) -> PreTrainedTokenizerFast:
    """The checkpoint's tokenizer, which also has its chat template."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


@functools.cache
def chat(folder: str, text: str, system: str = "be kind") -> tuple[int, ...]:
    """The ids of a conversation with one message of the user."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    rendered = tokenizer(folder).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    return tuple(tokenizer(folder)(rendered)["input_ids"])


def hear(folder: str, *parts: str | Tone) -> Heard:
    """A conversation with one message of the user, made of texts and sounds."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "audio"}
        for part in parts
    ]
    text = tokenizer(folder).apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    return Heard(text, tuple(part for part in parts if isinstance(part, Tone)))


@functools.cache
def processor(folder: str) -> Qwen2_5OmniProcessor:
    """The checkpoint's processor; it needs torchvision."""
    return Qwen2_5OmniProcessor.from_pretrained(folder)


def _model_inputs(folder: str, prompt: tuple[int, ...] | Heard) -> dict[str, torch.Tensor]:
    """What `generate` is given, padded on the left by one token.

    transformers 5.19 drops a mask of ones alone, and a talker without a mask leaves out the codec's
    embeddings in its prompt.
    """
    if isinstance(prompt, Heard):
        sounds = [tone.samples() for tone in prompt.tones]
        given = dict(
            processor(folder)(
                text=prompt.text, audio=sounds, sampling_rate=SAMPLE_RATE, return_tensors="pt"
            )
        )
    else:
        given = {"input_ids": torch.tensor([prompt])}
    ids = torch.cat([torch.tensor([[PAD]]), given["input_ids"]], dim=1)
    mask = torch.ones_like(ids)
    mask[0, 0] = 0
    return {**given, "input_ids": ids, "attention_mask": mask}


@functools.cache
def generate(
    folder: str,
    prompt: tuple[int, ...] | Heard,
    text_tokens: int,
    talker_tokens: int,
    *,
    speaker: str = "Chelsie",
    seed: int = 0,
    penalty: float = 1.0,
) -> Oracle:
    """What transformers makes of a prompt, with at most so many tokens of text and speech."""
    model = reference(folder)
    inputs = _model_inputs(folder, prompt)
    ids = inputs["input_ids"]
    talker = model.config.talker_config
    ends = [talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id]
    with _captured(model.thinker) as thinking, _captured(model.talker) as talking:
        torch.manual_seed(seed)
        sequences, waveform = model.generate(
            **inputs,
            speaker=speaker,
            thinker_max_new_tokens=text_tokens,
            thinker_eos_token_id=model.config.thinker_config.text_config.eos_token_id,
            thinker_do_sample=False,
            talker_max_new_tokens=talker_tokens,
            talker_eos_token_id=ends,
            talker_do_sample=False,
            talker_repetition_penalty=penalty,
        )
    steps = thinking.result.hidden_states
    embeds = torch.cat([step[0] for step in steps], dim=1)[0, 1:]
    hidden = torch.cat([step[-1] for step in steps], dim=1)[0, 1:]
    tokens = talking.result[0, talking.given["input_ids"].shape[1] :].tolist()
    return Oracle(
        prompt=ids[0, 1:].tolist(),
        text=sequences[0, ids.shape[1] :].tolist(),
        rows=embeds + hidden,
        hidden=hidden,
        talker=tokens,
        codes=tokens[:-1] if tokens[-1] in ends else tokens,
        waveform=waveform,
    )


def sound(folder: str, codes: list[int], speaker: str = "Chelsie", seed: int = 0) -> torch.Tensor:
    """The sound of codes in transformers' vocoder, float32 [samples]."""
    model = reference(folder)
    voice = model.speaker_map[speaker]
    torch.manual_seed(seed)
    with torch.no_grad():
        made: torch.Tensor = model.token2wav(
            torch.tensor([codes]),
            conditioning=voice["cond"].float(),
            reference_mel=voice["ref_mel"].float(),
        )
    return made.reshape(-1)


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
