"""Tiny thinkers that hear, and what transformers makes of the same sounds."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from antiphon.core.options import OutEdge
from antiphon.payload.adapters import INPUT_IDS, OutputNeeds, layer_output
from antiphon.pipeline.audio import AudioClip
from antiphon.stage.resolve import HEARING
from antiphon.stage.spec import StageSpec
from qwen3_omni_oracle import SAMPLE_RATE, Prompt, Tone, processor, reference, tokenizer
from tiny import Driven, tiny_spec
from tiny_adapters import _Output

LAYERS = (0, 1, 2)
BLOCK_BYTES = 2 * 3 * 2 * 32 * 4 * 32  # K and V, layers, KV heads, head size, fp32, tokens


class LayersOut(_Output):
    """Ids, the outputs of `LAYERS` and the last hidden states of every position."""

    needs = OutputNeeds(
        include_hidden=True, side_outputs=(INPUT_IDS, *(layer_output(layer) for layer in LAYERS))
    )


@dataclass(frozen=True)
class Heard:
    """One request. P prompt tokens, O text tokens."""

    prompt: list[int]  # P, a sound's placeholder as often as it has positions
    text: list[int]  # O
    layers: list[torch.Tensor]  # of `LAYERS`, and the last hidden states; each [P + O - 1, hidden]


def spec(name: str, model: str, **over: Any) -> StageSpec:
    """A thinker that hears; `over` are EngineArgs."""
    args = {
        "max_model_len": 512,
        "max_num_batched_tokens": 512,
        "kv_cache_memory_bytes": 64 * BLOCK_BYTES,
        **HEARING,
    }
    edges = (OutEdge("layers", "audio_stages:LayersOut"),)
    return tiny_spec(name, model, "audio_tests", outputs=edges, **args | over)


def clip(tone: Tone) -> AudioClip:
    return AudioClip.from_array(tone.samples(), SAMPLE_RATE)


def ids(folder: str, prompt: Prompt) -> list[int]:
    """As an entry gives them: one placeholder for each sound."""
    return list(tokenizer(folder)(prompt.text)["input_ids"])


def submit(stage: Driven, uid: str, prompt: Prompt, tokens: int = 12, **given: Any) -> None:
    given.setdefault("audio", tuple(clip(tone) for tone in prompt.tones))
    given.setdefault("sampling", {"max_tokens": tokens})
    stage.submit(uid, ids(stage.spec.model, prompt), **given)


@functools.cache
def hear(folder: str, prompt: Prompt, tokens: int = 12) -> Heard:
    """What transformers' thinker writes, greedy; the end token does not end it."""
    return _hear(folder, prompt.text, tuple(tone.samples() for tone in prompt.tones), tokens)


def hear_samples(folder: str, text: str, samples: np.ndarray[Any, Any], tokens: int = 12) -> Heard:
    """The same of a sound that is no tone: float32 [n] at 16 kHz."""
    return _hear(folder, text, (samples,), tokens)


def _hear(folder: str, text: str, sounds: tuple[np.ndarray[Any, Any], ...], tokens: int) -> Heard:
    inputs = _inputs(folder, text, sounds)
    with torch.inference_mode():
        made = reference(folder).thinker.generate(
            **inputs,
            max_new_tokens=tokens,
            do_sample=False,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_hidden_states=True,
        )
    length = inputs["input_ids"].shape[1]
    steps = made.hidden_states
    return Heard(
        prompt=inputs["input_ids"][0].tolist(),
        text=made.sequences[0, length:].tolist(),
        layers=[torch.cat([step[at] for step in steps], dim=1)[0] for at in (*LAYERS, -1)],
    )


def _inputs(
    folder: str, text: str, sounds: tuple[np.ndarray[Any, Any], ...]
) -> dict[str, torch.Tensor]:
    """What the processor makes, with each sound's features as if it were alone.

    The processor itself pads sounds to the longest before it takes their spectrum, so that the end
    of a sound depends on what else is in the prompt. vLLM makes the features one by one.
    """
    make = processor(folder)
    if not sounds:
        return dict(make(text=text, return_tensors="pt"))
    given = {"sampling_rate": SAMPLE_RATE, "return_tensors": "pt"}
    inputs = dict(make(text=text, audio=list(sounds), **given))
    alone = [
        make.feature_extractor(
            sound, **given, padding=True, truncation=False, return_attention_mask=True
        )
        for sound in sounds
    ]
    length = inputs["input_features"].shape[-1]
    for index, one in enumerate(alone):
        short = length - one["input_features"].shape[-1]
        padded = torch.nn.functional.pad(one["input_features"][0], (0, short))
        mask = torch.nn.functional.pad(one["attention_mask"][0], (0, short))
        assert torch.equal(mask, inputs["feature_attention_mask"][index])
        inputs["input_features"][index] = padded
    return inputs
