"""The codec's decoder against the official one, without engines: bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from antiphon.models.qwen3_tts.codec import CHUNK_FRAMES, CONTEXT_FRAMES, CodecDecoder
from antiphon.models.qwen3_tts.configs import CodecConfig, code2wav_config
from antiphon.models.qwen3_tts.register import register_models
from qwen3_tts_stages import CHECKPOINT, SAMPLES, about, references


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    register_models()
    config = code2wav_config(AutoConfig.from_pretrained(CHECKPOINT))
    assert isinstance(config, CodecConfig)
    made = CodecDecoder(config).eval()
    file = Path(CHECKPOINT) / "speech_tokenizer" / "model.safetensors"
    found = {
        name.removeprefix("decoder."): weight
        for name, weight in load_file(file).items()
        # The quantizer's other direction is for the encoder.
        if name.startswith("decoder.") and not ("quantizer" in name and "input_proj" in name)
    }
    made.load_state_dict(found)
    return made


@torch.inference_mode()
def test_sounds_like_the_official_decoder(decoder: CodecDecoder) -> None:
    for name in about()["cases"]:
        codes = references()[f"{name}.codes"].long()
        wave = decoder.decode(codes[None])[0]
        assert len(wave) == len(codes) * SAMPLES
        assert torch.equal(wave, references()[f"{name}.wave"])


@torch.inference_mode()
def test_what_is_long_is_cut_as_there(decoder: CodecDecoder) -> None:
    codes, wave = references()["codec.codes"].long(), references()["codec.wave"]
    assert len(codes) > CHUNK_FRAMES + CONTEXT_FRAMES
    assert torch.equal(decoder.decode(codes[None])[0], wave)


@torch.inference_mode()
def test_codes_matter_each(decoder: CodecDecoder) -> None:
    """Negative control: one code of one frame changes the waveform, from that frame on."""
    codes = references()["codec.codes"][:20].long()
    whole = decoder(codes[None])[0]
    for group in range(codes.shape[1]):
        other = codes.clone()
        other[9, group] = (other[9, group] + 1) % 64
        changed = (decoder(other[None])[0] - whole).abs() > 1e-6
        assert changed.any()
        assert not changed[: 9 * SAMPLES].any()


@torch.inference_mode()
def test_windows_need_their_context(decoder: CodecDecoder) -> None:
    """With context as long as the decoder sees, a window sounds like the whole; with none it does
    not.
    """
    codes = references()["codec.codes"][:60].long()
    whole = decoder(codes[None])[0]

    def window(left: int) -> float:
        wave = decoder(codes[None, 40 - left :])[0, left * SAMPLES :]
        return float((wave - whole[40 * SAMPLES :]).abs().max())

    assert window(32) < 1e-5
    assert window(0) > 1e-2
