"""`qwen3-omni` by its name, its thinker in a process of its own: files and clips reach it."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from antiphon import AudioClip, Deployment, Omni, OmniRequest, StageDeployment
from antiphon.errors import InputTooLongError
from antiphon.pipeline.detokenize import Detokenizer, load_tokenizer
from audio_stages import clip, hear
from qwen3_omni_oracle import Tone, chat

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

TOKENS = 12
SYSTEM = {"role": "system", "content": "be kind"}
SAMPLING: dict[str, dict[str, object]] = {"thinker": {"max_tokens": TOKENS, "ignore_eos": True}}
LOW, HIGH = Tone(1.3, 127.0), Tone(1.3, 291.0)


@pytest.fixture(scope="module")
def omni(checkpoint: str) -> Iterator[Omni]:
    small = StageDeployment(
        device="cpu",
        dtype="float32",
        max_model_len=256,
        max_num_batched_tokens=256,
        kv_cache_bytes="8MiB",
    )
    deployment = Deployment(
        pipeline="qwen3-omni", stages=dict.fromkeys(("thinker", "talker", "code2wav"), small)
    )
    with Omni(
        "qwen3-omni", model=checkpoint, deployment=deployment, modalities=("text",)
    ) as started:
        yield started


def text(folder: str, *parts: str | Tone) -> str:
    """What transformers' thinker writes."""
    detokenizer = Detokenizer(load_tokenizer(Path(folder)))
    tokens = hear(folder, chat(folder, *parts), TOKENS).text
    return detokenizer.feed(tokens)


def test_a_file_is_heard(omni: Omni, checkpoint: str, tmp_path: Path) -> None:
    """16 bits of a sound that has them exactly."""
    samples = np.round(LOW.samples() * 32768).astype(np.int16)
    file = tmp_path / "x.wav"
    with wave.open(str(file), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(samples.tobytes())
    given = {"messages": [SYSTEM], "sampling": SAMPLING, "modalities": ("text",)}
    of_file = omni.chat("hi", audio=file, **given)
    of_clip = omni.chat("hi", audio=[AudioClip.from_array(samples, 16_000)], **given)
    assert of_file.text == of_clip.text
    deaf = omni.chat("hi", **given)
    assert deaf.text != of_file.text


def test_a_conversation_with_sounds(omni: Omni, checkpoint: str) -> None:
    request = OmniRequest(
        messages=[SYSTEM, {"role": "user", "content": "hi", "audio": [clip(LOW), clip(HIGH)]}],
        sampling=SAMPLING,
        modalities=("text",),
    )
    assert omni.generate(request).text == text(checkpoint, LOW, HIGH, "hi")


def test_what_is_too_long_for_the_stage_comes_back_as_such(omni: Omni) -> None:
    long = AudioClip.from_array(np.zeros(40 * 16_000, np.int16), 16_000)
    with pytest.raises(InputTooLongError, match="tokens with its audio"):
        omni.chat("hi", audio=long, modalities=("text",))
