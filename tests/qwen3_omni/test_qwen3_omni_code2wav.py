"""The vocoder inside vLLM against transformers' module: whole utterances, windows of a stream."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from antiphon.core.frames import FrameWindows, Framing
from antiphon.models.qwen3_omni.configs import code2wav_config
from engine_pool import EnginePool
from qwen3_omni_alone import code2wav_spec, decode
from qwen3_omni_oracle import chat, generate, reference
from tiny import Driven

# Several windows of one length are decoded as a batch, in which sums are added up in another order.
BATCHED = 1e-5


@pytest.fixture(scope="module")
def stage(engines: EnginePool, checkpoint: str) -> Driven:
    driven: Driven = engines.stage(code2wav_spec("code2wav", checkpoint))
    return driven


@pytest.fixture(scope="module")
def codes(checkpoint: str) -> torch.Tensor:
    """int64 [frames, groups] that a talker made."""
    return generate(checkpoint, chat(checkpoint, "what is it?"), 12, 81).codes


def hf(folder: str, codes: torch.Tensor) -> torch.Tensor:
    """transformers' samples of frames."""
    with torch.inference_mode():
        return reference(folder).code2wav(codes.T[None])[0, 0]


def samples_of_a_frame(folder: str) -> int:
    return int(reference(folder).code2wav.total_upsample)


def test_an_utterance_is_transformers_own(
    stage: Driven, checkpoint: str, codes: torch.Tensor
) -> None:
    oracle = generate(checkpoint, chat(checkpoint, "what is it?"), 12, 81)
    (wave,) = decode(stage, [(codes, 0)])
    assert torch.equal(wave, oracle.waveform)
    assert wave.std() > 0.01


@pytest.mark.parametrize("frames", [1, 2, 7])
def test_short_ones(stage: Driven, checkpoint: str, codes: torch.Tensor, frames: int) -> None:
    (wave,) = decode(stage, [(codes[:frames], 0)])
    assert torch.equal(wave, hf(checkpoint, codes[:frames]))


def test_others_in_the_step_change_nothing(
    stage: Driven, checkpoint: str, codes: torch.Tensor
) -> None:
    windows = [codes[:20], codes[20:40], codes[5:12], codes[40:60], codes[60:67], codes[3:4]]
    waves = decode(stage, [(window, 0) for window in windows])
    for window, wave in zip(windows, waves, strict=True):
        torch.testing.assert_close(wave, hf(checkpoint, window), rtol=0, atol=BATCHED)


@pytest.mark.parametrize("left", [0, 1, 3, 10])
def test_a_window_is_cut_to_what_is_new(
    stage: Driven, checkpoint: str, codes: torch.Tensor, left: int
) -> None:
    """It begins with the tail that decoding the frames before has lost."""
    new = codes[30 - left : 37]
    whole = hf(checkpoint, new)
    lost = len(new) * samples_of_a_frame(checkpoint) - len(whole)
    assert 0 < lost < samples_of_a_frame(checkpoint)
    (wave,) = decode(stage, [(new, left)])
    assert torch.equal(wave, whole[max(0, left * samples_of_a_frame(checkpoint) - lost) :])


def stream(codes: torch.Tensor, framing: Framing) -> list[tuple[torch.Tensor, int]]:
    windows: FrameWindows[torch.Tensor] = FrameWindows(framing)
    cut = [*windows.push(list(codes)), *windows.flush()]
    return [(torch.stack(frames), window.left) for window, frames in cut]


def test_windows_join_to_the_whole(stage: Driven, checkpoint: str, codes: torch.Tensor) -> None:
    """With context over all that the decoder looks back upon, here 25 frames."""
    cut = stream(codes, Framing(initial=4, steady=10, ramp=2.0, left=25))
    assert len(cut) > 5
    joined = torch.cat(decode(stage, cut))
    whole = hf(checkpoint, codes)
    assert len(joined) == len(whole)
    torch.testing.assert_close(joined, whole, rtol=0, atol=BATCHED)


def test_too_little_context_is_heard(stage: Driven, checkpoint: str, codes: torch.Tensor) -> None:
    """The negative control; the length is right all the same."""
    joined = torch.cat(decode(stage, stream(codes, Framing(initial=4, steady=10, left=2))))
    whole = hf(checkpoint, codes)
    assert len(joined) == len(whole)
    assert float((joined - whole).abs().max()) > 1e-2


def test_the_order_of_codes_matters(stage: Driven, checkpoint: str, codes: torch.Tensor) -> None:
    """Another negative control: codes of a frame belong to its groups."""
    (wave,) = decode(stage, [(codes.flip(1), 0)])
    assert not torch.allclose(wave, hf(checkpoint, codes), atol=1e-2)


def test_the_longest_prompt_is_the_models(checkpoint: str) -> None:
    """Codes, not frames, count as positions."""
    config = reference(checkpoint).config
    own = config.code2wav_config
    stage_config = code2wav_config(config)
    assert stage_config.max_position_embeddings == own.max_position_embeddings * own.num_quantizers
    assert stage_config.vocab_size == own.codebook_size


def test_an_incomplete_checkpoint_is_refused(checkpoint: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    del tensors["code2wav.decoder.1.block.2.conv1.conv.bias"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Exception, match=r"not hold all of codec\.decoder\.1\.block\.2\.conv1"):
        Driven(code2wav_spec("incomplete", str(folder)))
