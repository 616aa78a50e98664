"""The network as vLLM's model: which row becomes whose picture."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# vLLM warns about its own dependencies while it is imported
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.engine.arg_utils import EngineArgs
    from vllm.pooling_params import PoolingParams
    from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

    from antiphon.models.imagine.draw import Draw

from safetensors.torch import load_file

from antiphon.models.imagine.register import register_models
from antiphon.models.imagine.topology import DRAW
from antiphon.models.imagine.weights import draw_checkpoint
from antiphon.payload.kv import KeysValues, KvGroup, KvHeader, KvMetadata, KvSnapshot
from antiphon.worker.capabilities import capabilities_of
from antiphon.worker.kv_model import GivenCaches

Cache = dict[str, KeysValues]


@pytest.fixture(scope="module")
def model() -> Draw:
    """With the checkpoint's weights, as vLLM makes it; without an engine around it."""
    register_models()
    folder = draw_checkpoint()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = EngineArgs(model=str(folder), **DRAW.engine).create_engine_config()
        made = Draw(vllm_config=config)
    loaded = made.load_weights(load_file(folder / "model.safetensors").items())
    assert loaded == {name for name, _ in made.named_parameters()}
    return made


def snapshot(cache: Cache, *, backwards: bool = False) -> KvSnapshot:
    """A cache as it arrives; the engine may name its layers in any order."""
    names = list(cache)[:: -1 if backwards else 1]
    length = len(cache[names[0]][0])
    group = KvGroup(tuple(names), num_kv_heads=3, head_size=64, block_size=128, layout="x")
    header = KvHeader("writer", "float32", "tokens", (group,), length)
    layers = tuple((torch.stack(cache[name]),) for name in names)
    return KvSnapshot(header, (layers,), tuple(range(length + 1)))


def step(model: Draw, requests: dict[str, tuple[int, KvSnapshot | None]]) -> list[torch.Tensor]:
    """One forward pass with the arguments that the worker gives: (variant, cache) by request."""
    given = GivenCaches(torch.device("cpu"), lambda uid: requests[uid][1])
    count = len(requests)
    ids = torch.tensor([variant for variant, _ in requests.values()])
    with torch.inference_mode():
        rows = model(
            input_ids=ids,
            positions=torch.zeros(count, dtype=torch.int64),
            intermediate_tensors=None,
            inputs_embeds=None,
            **given.arguments(list(requests), np.arange(count + 1)),
        )
        return model.pooler(rows, metadata(torch.ones(count, dtype=torch.int64)))


def metadata(lengths: torch.Tensor) -> PoolingMetadata:
    return PoolingMetadata(
        prompt_lens=lengths,
        prompt_token_ids=None,
        prompt_token_ids_cpu=None,
        pooling_params=[PoolingParams(task="plugin") for _ in lengths],
        pooling_states=[PoolingStates() for _ in lengths],
    )


def test_it_says_that_it_attends_to_caches(model: Draw) -> None:
    assert capabilities_of(model).attends_to_caches
    assert model.pooler.get_supported_tasks() == {"plugin"}


def test_each_request_gets_its_own_picture(model: Draw, text: Cache, other: Cache) -> None:
    """Two texts and two companions in one step: the bits of each are those of a step alone."""
    shared = snapshot(text)
    requests = {"a": (0, shared), "b": (1, shared), "c": (0, snapshot(other))}
    together = step(model, requests)
    alone = [step(model, {uid: request})[0] for uid, request in requests.items()]
    assert [tuple(picture.shape) for picture in together] == [(128, 128, 3)] * 3
    for one, same in zip(together, alone, strict=True):
        assert torch.equal(one, same)
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(together[0], together[2])


def test_it_is_the_networks_picture(model: Draw, text: Cache) -> None:
    """Layers are found by their names, the position is that behind the cache."""
    (picture,) = step(model, {"a": (3, snapshot(text, backwards=True))})
    layers = [text[name] for name in model.network.sizes.kv_layers]
    with torch.inference_mode():
        expected = model.network(layers, len(layers[0][0]), torch.tensor(3))
    assert torch.equal(picture, expected)


def test_a_request_without_a_cache_is_black(model: Draw, text: Cache) -> None:
    """It harms nobody; nothing of another's picture is in it."""
    pictures = step(model, {"a": (0, None), "b": (0, snapshot(text))})
    assert not pictures[0].any()
    assert torch.equal(pictures[1], step(model, {"b": (0, snapshot(text))})[0])


def test_upstreams_trial_runs_have_no_caches(model: Draw) -> None:
    """Any number of tokens for any number of requests."""
    with torch.inference_mode():
        rows = model(input_ids=torch.zeros(7, dtype=torch.int64), positions=torch.arange(7))
        pictures = model.pooler(rows, metadata(torch.tensor([3, 4])))
    assert [tuple(picture.shape) for picture in pictures] == [(128, 128, 3)] * 2
    assert not rows.any()


def test_a_longer_prompt_has_its_picture_in_its_last_row(model: Draw, text: Cache) -> None:
    cache = snapshot(text)
    about = KvMetadata((2, 5), cache.header.length, cache.header.length, tuple(text), ())
    with torch.inference_mode():
        rows = model(
            input_ids=torch.tensor([9, 9, 9, 9, 4]),
            positions=torch.arange(5),
            past_key_values=[None, list(text.values())],
            kv_metadata=[None, about],
        )
        pictures = model.pooler(rows, metadata(torch.tensor([2, 3])))
    assert torch.equal(pictures[1], step(model, {"a": (4, cache)})[0])


_CODE = """
import sys
from vllm.plugins import load_general_plugins
load_general_plugins()
from transformers import AutoConfig
from vllm import ModelRegistry
config = AutoConfig.from_pretrained(sys.argv[1], local_files_only=True)
print(type(config).__name__, config.architectures[0] in ModelRegistry.get_supported_archs())
print(config.sizes().side, config.vocab_size)
"""


@pytest.mark.slow
def test_new_process_knows_the_model(empty_cache_folder: Path) -> None:
    """Nothing but the installed entry point registers it."""
    command = [sys.executable, "-c", _CODE, str(draw_checkpoint())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-4:] == ["DrawConfig", "True", "128", "64"]
