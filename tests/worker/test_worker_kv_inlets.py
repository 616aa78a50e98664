"""Caches that arrive are checked before anything is touched, and kept until they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch

from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.tickets import Arrived, Fetch
from antiphon.payload import wire
from antiphon.payload.kv import KvHeader, KvSnapshot
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload
from antiphon.worker.kv_layout import BlockShape
from kv_bench import BLOCKS, GIVEN, IDS, LENGTH, SHAPE, Receiving, arrived
from paged import Engine
from tiny_adapters import CALLS
from worker_bench import errors


@pytest.fixture
def bench() -> Iterator[Receiving]:
    made = Receiving()
    yield made
    made.close()


# --- an ar stage ----------------------------------------------------------------------------------


def test_a_cache_becomes_the_beginning_of_a_prompt(bench: Receiving) -> None:
    found = arrived(bench.fetch("b", bench.announce()))
    assert found == Arrived("b", "k", True, PromptPlan(IDS), 0, LENGTH)
    cache = bench.io.take_cache("b")
    assert cache is not None
    bench.engine.caches.load(cache, BLOCKS, 0, LENGTH)
    stored = bench.engine.stored(BLOCKS, LENGTH)
    assert all(torch.equal(*pair) for pair in zip(stored, bench.filled, strict=True))
    assert bench.io.take_cache("b") is None  # it is used once
    assert (bench.entries(), len(bench.io)) == (0, 1)


@pytest.mark.parametrize(("prompt", "cached"), [(11, 10), (10, 9), (5, 4), (2, 1), (1, 0)])
def test_one_token_is_left_to_compute(bench: Receiving, prompt: int, cached: int) -> None:
    """A request that computes nothing samples nothing."""
    found = arrived(bench.fetch("b", bench.announce(), length=prompt))
    assert found.cached == cached
    assert (bench.io.take_cache("b") is not None) is bool(cached)


def test_a_removed_request_leaves_no_cache(bench: Receiving) -> None:
    bench.fetch("b", bench.announce())
    bench.io.removed("b")
    bench.news()
    assert bench.io.take_cache("b") is None
    assert len(bench.io) == 0


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"wrong": 0}, "does not begin with the tokens"),
        ({"wrong": 9}, "does not begin with the tokens"),
        ({"planless": True}, "without the prompt"),
    ],
)
def test_a_prompt_that_does_not_fit_its_cache_is_refused(
    bench: Receiving, params: dict[str, Any], why: str
) -> None:
    news = bench.fetch("b", bench.announce(recompute=True), **params)
    assert errors(news) == [("b", "adapter")]
    assert why in news.failed[0][1].message
    assert bench.io.take_cache("b") is None


def test_the_token_behind_the_cache_may_be_another(bench: Receiving) -> None:
    assert arrived(bench.fetch("b", bench.announce(), wrong=10)).cached == LENGTH


@pytest.mark.parametrize(("own", "salt"), [(None, "conditioning"), ("mine", "mine")])
def test_blocks_are_salted_as_where_they_come_from(
    bench: Receiving, own: str | None, salt: str
) -> None:
    """C99: what was computed with a conditioning is not found by requests without it."""
    params = {} if own is None else {"salt": own}
    found = arrived(bench.fetch("b", bench.announce(bench.sent(salt="conditioning")), **params))
    assert found.plan is not None
    assert found.plan.salt == salt


def test_an_empty_end_brings_no_cache(bench: Receiving) -> None:
    found = arrived(bench.fetch("b", Ref("there", "kv", 0, end=True)))
    assert (found.plan, found.cached, CALLS["cache end"]) == (None, 0, 1)


# --- what is refused, and computed again if that is wanted ----------------------------------------


def _header(**change: Any) -> Callable[[KvHeader], KvHeader]:
    return lambda header: msgspec.structs.replace(header, **change)


def _group(**change: Any) -> Callable[[KvHeader], KvHeader]:
    return lambda header: msgspec.structs.replace(
        header, groups=(msgspec.structs.replace(header.groups[0], **change),)
    )


HEADERS: dict[str, Callable[[KvHeader], KvHeader]] = {
    "weights": _header(model="others"),
    "position": _header(first_position=3),
    "layout": _group(layout="another"),
    "heads": _group(num_kv_heads=3),
    "head size": _group(head_size=2),
    "layers": _group(layers=("0.0", "0.9")),
}
FORMS: dict[str, Callable[[Receiving], KvSnapshot]] = {
    "form": lambda bench: bench.sent(blocks=False),
    "dtype": lambda bench: _foreign(dtype=torch.float16),
    "block size": lambda bench: _foreign(BlockShape(8, 2, 3)),
    "groups": lambda bench: _foreign(SHAPE, BlockShape(4, 1, 2)),
}


def _foreign(*shapes: BlockShape, **how: Any) -> KvSnapshot:
    engine = Engine(shapes or (SHAPE,), **how)
    ids = tuple((7, 2, 3) for _ in engine.shapes)
    return engine.caches.extract(ids, LENGTH, IDS, None, blocks=True).wait()


def _renamed(name: str) -> Callable[[Receiving], KvSnapshot]:
    def make(bench: Receiving) -> KvSnapshot:
        sent = bench.sent()
        return KvSnapshot(HEADERS[name](sent.header), sent.layers, sent.token_ids)

    return make


MAKERS = FORMS | {name: _renamed(name) for name in HEADERS}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_cache_of_another_engine_is_refused(
    bench: Receiving, make: Callable[[Receiving], KvSnapshot], recompute: bool
) -> None:
    refused_or_recomputed(bench, bench.announce(make(bench), recompute=recompute), "payload")


def _lost(bench: Receiving, ref: Ref) -> None:
    bench.other.delete([ref.key or ""])


def _truncated(bench: Receiving, ref: Ref) -> None:
    bench.store_raw(bytearray(bench.other.take(ref.key or ""))[:-64], ref)


def _corrupt(bench: Receiving, ref: Ref) -> None:
    data = bytearray(bench.other.take(ref.key or ""))
    data[60] ^= 1
    bench.store_raw(data, ref)


def _without_cache(bench: Receiving, ref: Ref) -> None:
    bench.store_raw(bytearray().join(wire.encode(Payload({}))), ref)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("harm", [_lost, _truncated, _corrupt, _without_cache])
def test_a_cache_that_did_not_survive_is_refused(
    bench: Receiving, harm: Callable[[Receiving, Ref], None], recompute: bool
) -> None:
    ref = bench.announce(recompute=recompute)
    harm(bench, ref)
    refused_or_recomputed(bench, ref, "connector" if harm is _lost else "payload")


def refused_or_recomputed(bench: Receiving, ref: Ref, code: str) -> None:
    """The request fails with this error, or is given the token ids alone; nothing is touched."""
    other = bench.announce(key="other")
    news = bench.work(fetches=[Fetch("b", ref, {}), Fetch("c", other, {})])
    if ref.token_ids:
        assert news.failed == []
        assert GIVEN[0] == Payload({}, token_ids=IDS)
        assert news.arrived[0] == Arrived("b", ref.key, True, PromptPlan(IDS))
        assert bench.io.recomputed_caches == 1
    else:
        assert errors(news) == [("b", code)]
        assert len(GIVEN) == 1  # the other request's
        assert bench.io.recomputed_caches == 0
    assert news.arrived[-1] == Arrived("c", "other", True, PromptPlan(IDS), 0, LENGTH)
    assert bench.io.take_cache("b") is None
    assert bench.io.take_cache("c") is not None
    assert not any(paged.tensor.any() for paged in bench.engine.paged[0])
    assert bench.entries() == 0


def test_a_payload_without_a_cache_is_refused(bench: Receiving) -> None:
    ref = bench.store("k", Payload({}), "kv")
    assert errors(bench.fetch("b", ref)) == [("b", "payload")]
    assert GIVEN == []


def test_a_cache_that_was_lost_on_the_way_is_computed_again(bench: Receiving) -> None:
    """Its producer says so: token ids, and no key."""
    found = arrived(bench.fetch("b", Ref("there", "kv", 0, end=True, token_ids=IDS)))
    assert found == Arrived("b", None, True, PromptPlan(IDS))
    (given,) = GIVEN
    assert given == Payload({}, token_ids=IDS)
    assert bench.io.recomputed_caches == 1
