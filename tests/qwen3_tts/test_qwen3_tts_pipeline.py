"""The whole pipeline as its users run it, in this process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon import AudioChunk, Deployment, Finished, Omni, OmniRequest
from antiphon.errors import InvalidRequestError, ModelUnavailableError
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.stage_deployment import StageDeployment
from engine_pool import EnginePool
from qwen3_tts_stages import CHECKPOINT, SAMPLES, about, case, params_of, references

GREEDY = {
    "talker": {
        "temperature": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": about()["max_frames"],
    }
}


def deployment(**edge: Any) -> Deployment:
    """What a tiny checkpoint needs of an operator."""
    tiny: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "kv_cache_bytes": 4 << 20}
    talker = StageDeployment(**tiny, engine_args={"block_size": 32})
    return Deployment(
        pipeline="qwen3-tts",
        stages={"talker": talker, "code2wav": StageDeployment(**tiny)},
        edges={"codes": EdgeDeployment(**edge)},
        in_process=True,
    )


@pytest.fixture(scope="module")
def omni(engines: EnginePool) -> Omni:
    made = Omni("qwen3-tts", deployment=deployment(), model=CHECKPOINT)
    engines.keep(made.close)
    return made


@pytest.mark.parametrize(
    "name", [name for name, given in about()["cases"].items() if "text" in given]
)
def test_a_text_is_spoken(name: str, omni: Omni) -> None:
    """Chunk by chunk, and what official code says; 72 frames of context are more than there are."""
    request = OmniRequest(
        entry="speech",
        text=case(name)["text"],
        modalities=("audio",),
        params=params_of(name),
        sampling=GREEDY,
    )
    events = list(omni.stream(request))
    chunks = [event for event in events if isinstance(event, AudioChunk)]
    assert isinstance(events[-1], Finished)
    assert {chunk.sample_rate for chunk in chunks} == {24_000}
    assert len(chunks[0].samples) == SAMPLES
    sound = np.concatenate([chunk.samples for chunk in chunks])
    np.testing.assert_allclose(sound, references()[f"{name}.wave"].numpy(), rtol=0, atol=1e-5)


def test_official_sampling_is_the_default(omni: Omni) -> None:
    """A seed repeats it."""
    first, again, other = (
        omni.say("Hi there.", sampling={"talker": {"max_tokens": 12, "seed": seed}})
        for seed in (1, 1, 2)
    )
    assert first.audio is not None
    assert again.audio is not None
    assert other.audio is not None
    assert np.array_equal(first.audio, again.audio)
    assert not np.array_equal(first.audio, other.audio)


def test_a_wrong_voice_is_refused(omni: Omni) -> None:
    with pytest.raises(InvalidRequestError, match="did you mean vivian"):
        omni.say("Hi there.", params={"speaker": "vivien"})


def test_a_checkpoint_without_codec_is_told_before_anything_starts(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINT, folder)
    shutil.rmtree(folder / "speech_tokenizer")
    with pytest.raises(ModelUnavailableError, match="speech_tokenizer"):
        Omni("qwen3-tts", deployment=deployment(), model=str(folder))
