"""Real engines: what leaves is what transformers computes, whatever the kernels make of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

import tiny_reader
from antiphon.connector.inproc import InprocConnector
from antiphon.core.kv_handoff import Criterion, KvTransfer
from antiphon.core.options import InEdge, OutEdge
from antiphon.errors import AntiphonError, DeploymentError, TopologyError
from antiphon.payload import wire
from antiphon.payload.kv import KvSnapshot, keys_and_values
from antiphon.pipeline.topology import StageKind
from engine_pool import EnginePool
from tiny import BLOCK, VOCAB, Driven, reference, tiny_model, tiny_spec
from tiny_streams import Chain

EDGE = "cache"
OUT = "antiphon.models.kv_adapters:CacheOutput"
# bfloat16 is packed for matrix instructions where the machine has them.
ENGINES: dict[str, dict[str, Any]] = {
    "float32": {},
    "large blocks": {"block_size": 3 * BLOCK, "kv_cache_memory_bytes": 2 << 20},
    "bfloat16": {"dtype": "bfloat16"},
}


def producer_spec(name: str, model: str, type_: Criterion = "request_finished", **over: Any) -> Any:
    edge = OutEdge(EDGE, OUT, kv=KvTransfer(type_, stop_after_transfer=False, park=False))
    return tiny_spec(name, model, "worker_kv", outputs=(edge,), **over)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model(tmp_path_factory.mktemp("kv-worker"), seed=1)


@pytest.fixture(scope="module")
def judge(model: str) -> LlamaForCausalLM:
    return reference(model)


@pytest.fixture(scope="module")
def producers(engines: EnginePool, model: str) -> dict[str, Driven]:
    return {
        name: engines.stage(producer_spec(name.replace(" ", "-"), model, **over))
        for name, over in ENGINES.items()
    }


@pytest.fixture
def connector() -> Iterator[InprocConnector]:
    """The run's store, from outside."""
    connector = InprocConnector("worker_kv", 1 << 30)
    yield connector
    connector.close()


def prompt_of(seed: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCAB - 1, (length,), generator=generator).tolist()


def expected(judge: LlamaForCausalLM, token_ids: list[int]) -> list[torch.Tensor]:
    """Keys and values [2, length, heads, head size] of each layer, as transformers has them."""
    with torch.inference_mode():
        layers = judge(torch.tensor([token_ids]), use_cache=True).past_key_values.layers
    return [torch.stack([layer.keys[0], layer.values[0]]).transpose(1, 2) for layer in layers]


def taken(stage: Driven, connector: InprocConnector, uid: str) -> KvSnapshot:
    """The cache that this request has sent."""
    (ref,) = [ref for ref in stage.refs() if ref.uid == uid]
    assert ref.key is not None
    cache = wire.decode(connector.take(ref.key), expect=ref.fields).cache
    assert cache is not None
    return cache


def difference(cache: KvSnapshot, wanted: list[torch.Tensor]) -> float:
    """Root mean square of all keys' and values' errors, relative to theirs."""
    found = torch.stack([torch.stack(layer).float() for layer in keys_and_values(cache)])
    right = torch.stack(wanted)
    return float((found - right).square().mean().sqrt() / right.square().mean().sqrt())


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 100])
def test_a_cache_is_what_transformers_computes(
    producers: dict[str, Driven],
    judge: LlamaForCausalLM,
    connector: InprocConnector,
    name: str,
    length: int,
) -> None:
    """Of the prompt and of what was sampled, except the last token, which was never fed back."""
    stage, uid = producers[name], f"{name}-{length}"
    stage.clear()
    stage.submit(uid, prompt_of(length, length), edges=(EDGE,), sampling={"max_tokens": 4})
    stage.run()
    cache = taken(stage, connector, uid)
    ids = prompt_of(length, length) + stage.tokens(uid)
    assert cache.token_ids == tuple(ids)
    assert cache.header.length == length + 3
    assert cache.header.dtype == ("bfloat16" if name == "bfloat16" else "float32")
    wanted = expected(judge, ids[:-1])
    # bfloat16 has 8 bits: each of a few roundings is wrong by up to 1/256.
    assert difference(cache, wanted) < (0.03 if name == "bfloat16" else 1e-5)
    # Any other order is far off, so the comparison could fail.
    for dim in (0, 1, 2, 3):
        assert difference(cache, [layer.flip(dim) for layer in wanted]) > 0.3
    stage.discard()
    stage.assert_empty()


def test_blocks_of_several_requests_between_each_other(
    producers: dict[str, Driven], judge: LlamaForCausalLM, connector: InprocConnector
) -> None:
    """Requests that grow together take turns in taking blocks."""
    stage = producers["float32"]
    stage.clear()
    uids = [f"between-{index}" for index in range(3)]
    for index, uid in enumerate(uids):
        prompt = prompt_of(index, BLOCK - 2 - index)
        stage.submit(uid, prompt, edges=(EDGE,), sampling={"max_tokens": BLOCK + 12})
    manager = stage.scheduler.kv_cache_manager
    stage.run_until(lambda: all(len(stage.tokens(uid)) > BLOCK + 7 for uid in uids))
    for uid in uids:
        (ids,) = manager.get_block_ids(uid)
        assert any(b != a + 1 for a, b in pairwise(ids)), ids
    stage.run()
    for index, uid in enumerate(uids):
        ids = prompt_of(index, BLOCK - 2 - index) + stage.tokens(uid)
        cache = taken(stage, connector, uid)
        assert difference(cache, expected(judge, ids[:-1])) < 1e-5
    stage.discard()
    stage.assert_empty()


# --- engines that cannot --------------------------------------------------------------------------

WINDOW = {"sliding_window": BLOCK, "layer_types": ["sliding_attention"] * 2}
CANNOT: dict[str, tuple[dict[str, Any], dict[str, Any], type[AntiphonError]]] = {
    "kv_cache_dtype to 'auto'": ({}, {"kv_cache_dtype": "fp8"}, DeploymentError),
    "of the kind SlidingWindow": (WINDOW, {}, TopologyError),
}


@pytest.mark.parametrize("why", CANNOT)
def test_an_engine_whose_caches_cannot_cross_does_not_start(
    producers: dict[str, Driven], tmp_path: Path, why: str
) -> None:
    """The error names the layer and says what to do, before any request comes."""
    shape, args, error = CANNOT[why]
    model = tiny_model(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | shape))
    with pytest.raises(error) as raised:
        Driven(producer_spec("cannot", model, **args))
    assert "'model.layers.0.self_attn.attn'" in str(raised.value)
    assert why in str(raised.value)
    assert producers["float32"].inspect().error is None


# --- a generation stage ---------------------------------------------------------------------------


def reader_spec(name: str, folder: Path, arch: str) -> Any:
    tiny_reader.register()
    return tiny_spec(
        name,
        tiny_reader.reader_model(folder, arch),
        "worker_kv",
        kind=StageKind.GENERATION,
        inputs=(InEdge(EDGE, "tiny_reader:CacheIn", kv=True),),
        runner="pooling",
        load_format="dummy",
        enable_chunked_prefill=False,
        kv_cache_memory_bytes=1 << 20,
    )


@pytest.fixture(scope="module")
def reader(engines: EnginePool, tmp_path_factory: pytest.TempPathFactory) -> Driven:
    tiny_reader.HEARD.clear()
    folder = tmp_path_factory.mktemp("reader")
    return engines.stage(reader_spec("reader", folder, tiny_reader.ARCH))


def said(stage: Driven, uid: str) -> list[float]:
    """A generation request's output."""
    for event, frames in zip(stage.events, stage.frames, strict=True):
        for out in getattr(event, "outputs", []):
            if out.uid == uid and out.tensor is not None:
                found: list[float] = np.frombuffer(frames[out.tensor.frame], np.float32).tolist()
                return found
    raise AssertionError(f"{uid} has said nothing")


def test_a_generation_model_is_given_keys_and_values(
    producers: dict[str, Driven], judge: LlamaForCausalLM, reader: Driven
) -> None:
    """Several requests of one step, one of which attends to nothing; in the batch's order."""
    chain = Chain(producers["float32"], reader)
    lengths = {"g1": 5, "g2": BLOCK + 3, "g3": 9}
    for seed, (uid, length) in enumerate(lengths.items()):
        prompt = prompt_of(seed, length)
        chain.producer.submit(uid, prompt, edges=(EDGE,), sampling={"max_tokens": 3})
        chain.consumer.submit(f"{uid}'", waits_for=EDGE, params={"blind": uid == "g2"})
    tiny_reader.HEARD.clear()
    chain.run()
    for seed, (uid, length) in enumerate(lengths.items()):
        ids = (prompt_of(seed, length) + chain.producer.tokens(uid))[:-1]
        halves = [tuple(layer) for layer in expected(judge, ids)]
        wanted = torch.zeros(5) if uid == "g2" else tiny_reader.summary(len(ids), halves)
        assert said(reader, f"{uid}'") == pytest.approx(wanted.tolist(), rel=1e-4, abs=1e-3)
    (heard,) = tiny_reader.HEARD
    about = [
        None if m is None else (m.rows, m.length, m.next_position) for m in heard["kv_metadata"]
    ]
    assert about == [((0, 2), 7, 7), None, ((4, 6), 11, 11)]
    assert heard["kv_metadata"][0].layers == tuple(
        f"model.layers.{n}.self_attn.attn" for n in range(2)
    )
    shapes = [[tuple(k.shape) for k, _ in cache or []] for cache in heard["past_key_values"]]
    assert shapes == [[(7, 2, 32)] * 2, [], [(11, 2, 32)] * 2]
    for stage in (chain.producer, chain.consumer):
        stage.run()
        seen = stage.inspect()
        assert (seen.error, seen.requests, seen.worker_requests) == (None, 0, 0)
        assert seen.connector_entries == 0


def test_upstreams_trial_runs_are_given_nothing(
    engines: EnginePool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """They have no requests that could attend to anything."""
    tiny_reader.HEARD.clear()
    folder = tmp_path_factory.mktemp("trial")
    engines.stage(reader_spec("trial", folder, tiny_reader.ARCH))
    assert all(heard["past_key_values"] is None for heard in tiny_reader.HEARD)


def test_a_model_that_attends_to_nothing_is_refused(
    producers: dict[str, Driven], tmp_path: Path
) -> None:
    """When it is loaded, and not by the first request that brings a cache."""
    with pytest.raises(TopologyError, match="'cache' brings KV caches, but TinyDeaf"):
        Driven(reader_spec("deaf", tmp_path, tiny_reader.DEAF))
    assert producers["float32"].inspect().error is None
