"""The whole pipeline as its users run it, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon import AudioChunk, Deployment, Finished, Omni, OmniRequest
from antiphon.errors import InputTooLongError, ModelUnavailableError
from antiphon.models.codec_lm.entries import SpeechEntry
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.entry import EntryRequest
from antiphon.pipeline.stage_deployment import StageDeployment
from codec_lm_stages import OPTIONS, windowed
from codec_lm_tiny import Oracle
from engine_pool import EnginePool

GREEDY = {"lm": {"temperature": 0.0, "max_tokens": 48}}
TEXT = "Say this."
LENGTH = 256


def deployment(**edge: Any) -> Deployment:
    """What a tiny model needs of an operator: it has fewer positions than real ones."""
    tiny: dict[str, Any] = {
        "dtype": "float32",  # upstream's "auto" makes bfloat16 of it
        "max_model_len": LENGTH,
        "kv_cache_bytes": 4 << 20,
        "engine_args": {"block_size": 32},
    }
    return Deployment(
        pipeline="codec-lm",
        stages={"lm": StageDeployment(**tiny), "codec": StageDeployment(max_model_len=LENGTH)},
        edges={"codes": EdgeDeployment(**edge)},
        in_process=True,
    )


def start(engines: EnginePool, lm: str, codec: str, **edge: Any) -> Omni:
    omni = Omni("codec-lm", deployment=deployment(**edge), model={"lm": lm, "codec": codec})
    engines.keep(omni.close)
    return omni


def test_a_text_is_spoken(
    engines: EnginePool, checkpoints: dict[str, str], oracles: dict[str, Oracle], tmp_path: Path
) -> None:
    """The waveform of transformers, bit by bit, at the codec's rate; a long text is refused."""
    omni = start(engines, checkpoints["llama"], checkpoints["xcodec2"])
    reply = omni.say(TEXT, sampling=GREEDY)
    (prompt,) = SpeechEntry(Path(checkpoints["llama"])).prompts(EntryRequest(text=TEXT))
    tokens = oracles["llama"].tokens(prompt, 48)
    assert reply.audio is not None
    assert np.array_equal(reply.audio, oracles["llama"].sound(tokens).numpy())
    assert reply.sample_rate == 16_000
    assert reply.save(tmp_path / "said.wav").stat().st_size == 44 + 2 * reply.audio.size
    with pytest.raises(InputTooLongError):
        omni.say("a" * LENGTH)
    assert omni.say(TEXT, sampling=GREEDY).audio is not None


def test_a_text_is_spoken_chunk_by_chunk(engines: EnginePool, checkpoints: dict[str, str]) -> None:
    """An operator streams the edge; the other backbone, the other codec and its rate."""
    lm, codec = checkpoints["qwen2"], checkpoints["neucodec"]
    omni = start(engines, lm, codec, mode="stream", options=OPTIONS)
    request = OmniRequest(entry="speech", text=TEXT, modalities=("audio",), sampling=GREEDY)
    events = list(omni.stream(request))
    chunks = [event for event in events if isinstance(event, AudioChunk)]
    oracle = Oracle.of(lm, codec)
    (prompt,) = SpeechEntry(Path(lm)).prompts(EntryRequest(text=TEXT))
    expected = windowed(oracle, oracle.tokens(prompt, 48), hop=6)
    assert len(chunks) > 1
    assert {chunk.sample_rate for chunk in chunks} == {24_000}
    assert torch.equal(
        torch.from_numpy(np.concatenate([chunk.samples for chunk in chunks])), expected
    )
    assert isinstance(events[-1], Finished)


@pytest.mark.parametrize(
    ("swapped", "message"),
    [
        ({"codec": "llama"}, "cannot serve stage codec"),
        ({"lm": "xcodec2"}, "one kind of token for codes"),
    ],
)
def test_the_wrong_checkpoint_is_told_before_anything_starts(
    checkpoints: dict[str, str], swapped: dict[str, str], message: str
) -> None:
    names = {"lm": "llama", "codec": "xcodec2", **swapped}
    models = {stage: checkpoints[name] for stage, name in names.items()}
    with pytest.raises(ModelUnavailableError, match=message):
        Omni("codec-lm", deployment=deployment(), model=models)


def test_no_checkpoint_at_all() -> None:
    with pytest.raises(ModelUnavailableError, match="--model"):
        Omni("codec-lm", deployment=deployment())
