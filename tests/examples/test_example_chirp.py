"""The example of docs/adding-a-model.md: what it plays is what its models say.

The frames are computed again with transformers and the talker's own weights.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from antiphon import Deployment, Omni, Reply
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.stage_deployment import StageDeployment
from engine_pool import EnginePool
from tiny import BLOCK_BYTES, HIDDEN, tiny_model

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS = ("hello there", "what is it", "a longer text than the others are", "x")


@pytest.fixture(scope="module")
def chirp() -> Iterator[Any]:
    sys.path.insert(0, str(EXAMPLES))
    import chirp
    from vllm import ModelRegistry

    # As classes: by name vLLM would import them in a process of its own first.
    ModelRegistry.register_model("ChirpTalker", chirp.ChirpTalker)
    ModelRegistry.register_model("ChirpVocoder", chirp.ChirpVocoder)
    yield chirp
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, chirp: Any) -> dict[str, str]:
    """Tiny checkpoints: a thinker that reads letters, a talker, a vocoder without weights."""
    folder = tmp_path_factory.mktemp("chirp")
    thinker = tiny_model(folder / "thinker", seed=1)
    _letters(Path(thinker))
    talker = tiny_model(
        folder / "talker", seed=2, architectures=["ChirpTalker"], thinker_hidden=HIDDEN
    )
    weights = load_file(Path(talker) / "model.safetensors")
    lots = torch.Generator().manual_seed(4)
    weights["listen.weight"] = 0.3 * torch.randn(HIDDEN, HIDDEN, generator=lots)
    weights["second.weight"] = torch.randn(chirp.CODES, HIDDEN, generator=lots)
    weights["codes.weight"] = 0.5 * torch.randn(chirp.CODES, HIDDEN, generator=lots)
    save_file(weights, Path(talker) / "model.safetensors", metadata={"format": "pt"})
    vocoder = tiny_model(folder / "vocoder", seed=3, architectures=["ChirpVocoder"])
    return {"thinker": thinker, "talker": talker, "vocoder": vocoder}


def _letters(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {chr(code): code for code in range(127)} | {"<end>": 127}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))


def deployment(models: dict[str, str], mode: str) -> Deployment:
    stage = StageDeployment(
        dtype="float32", max_model_len=128, kv_cache_bytes=32 * BLOCK_BYTES, max_num_seqs=8
    )
    return Deployment(
        pipeline="chirp",
        in_process=True,
        models=models,
        stages=dict.fromkeys(models, stage),
        edges={"frames": EdgeDeployment(mode=mode)},  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module", params=["stream", "full"])
def omni(
    request: pytest.FixtureRequest, engines: EnginePool, chirp: Any, models: dict[str, str]
) -> Omni:
    made = Omni(chirp.TOPOLOGY, deployment=deployment(models, request.param))
    engines.keep(made.close)
    return made


SAMPLING: dict[str, dict[str, object]] = {
    "thinker": {"temperature": 0.0, "ignore_eos": True},
    "talker": {"temperature": 0.0, "ignore_eos": True},
}


def chirped(omni: Omni, text: str) -> Reply:
    return omni.chat(text, sampling=SAMPLING)


@torch.inference_mode()
def expected(chirp: Any, models: dict[str, str], text: str, *, deaf: bool = False) -> np.ndarray:
    """The samples, by transformers; `deaf`: without what the thinker thinks."""
    from transformers import LlamaForCausalLM

    thinker, talker = (
        LlamaForCausalLM.from_pretrained(models[stage]).eval() for stage in ("thinker", "talker")
    )
    own = load_file(Path(models["talker"]) / "model.safetensors")
    ids = torch.tensor([[ord(letter) for letter in text]])
    thinker.generation_config.eos_token_id = None
    written = thinker.generate(ids, max_new_tokens=16, do_sample=False, pad_token_id=0)
    rows = thinker.model(written[:, :-1]).last_hidden_state[0]
    embeds, frames = talker.model.embed_tokens(torch.tensor([[0]])), []
    while len(frames) < 24:
        hidden = talker.model(inputs_embeds=embeds).last_hidden_state[0, -1]
        token = int(talker.lm_head(hidden).argmax())
        code = int((own["second.weight"] @ hidden).argmax())
        index = len(frames)
        frames.append((token, code))
        embed = talker.model.embed_tokens(torch.tensor(token)) + own["codes.weight"][code]
        if index < len(rows) and not deaf:
            embed = embed + own["listen.weight"] @ rows[index]
        embeds = torch.cat([embeds, embed[None, None]], 1)
    time = torch.arange(chirp.SAMPLES) / chirp.RATE
    pitches = torch.tensor([[200 + 10 * a + 40 * b] for a, b in frames])
    return torch.sin(2 * torch.pi * pitches * time).flatten().numpy()


def test_it_plays_what_its_models_say(omni: Omni, chirp: Any, models: dict[str, str]) -> None:
    reply = chirped(omni, TEXTS[0])
    assert reply.audio is not None
    assert reply.sample_rate == chirp.RATE
    assert np.array_equal(reply.audio, expected(chirp, models, TEXTS[0]))
    assert not np.array_equal(reply.audio, expected(chirp, models, TEXTS[0], deaf=True))


def test_several_at_once(omni: Omni, chirp: Any, models: dict[str, str]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(TEXTS)) as pool:
        replies = list(pool.map(lambda text: chirped(omni, text), TEXTS))
    for text, reply in zip(TEXTS, replies, strict=True):
        assert reply.audio is not None
        # The sine of the same pitch can differ in its last bit: it is computed for all at once.
        assert np.allclose(reply.audio, expected(chirp, models, text), rtol=0, atol=1e-5)
