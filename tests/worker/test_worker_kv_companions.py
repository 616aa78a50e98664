"""A cache that several requests attend to, and caches of generation stages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.tickets import Fetch
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload, per_token
from kv_bench import GIVEN, IDS, LENGTH, WATCHED, Receiving, arrived
from worker_bench import errors


@pytest.fixture
def bench() -> Iterator[Receiving]:
    made = Receiving()
    yield made
    made.close()


@pytest.fixture
def reader() -> Iterator[Receiving]:
    """A generation stage."""
    made = Receiving(positions=True)
    yield made
    made.close()


# --- companions -----------------------------------------------------------------------------------


def test_companions_share_one_payload(bench: Receiving) -> None:
    """One ref for all of them: taken once, decoded once, and kept for each."""
    ref = bench.announce()
    news = bench.work(fetches=[Fetch(uid, ref, {}) for uid in "bcd"])
    assert [found.uid for found in news.arrived] == ["b", "c", "d"]
    assert {found.cached for found in news.arrived} == {LENGTH}
    assert bench.connector.statistics().takes == 1
    assert GIVEN[0] is GIVEN[1] is GIVEN[2]
    assert bench.io.take_cache("b") is bench.io.take_cache("c")
    bench.io.removed("c")
    bench.news()
    assert bench.io.take_cache("d") is not None


@pytest.mark.parametrize("failed", ["b", "c", "d", "bd", "bc", "cd"])
def test_a_companion_that_has_failed_takes_nothing_from_the_others(
    bench: Receiving, failed: str
) -> None:
    for uid in failed:
        bench.fetch(uid, bench.announce(key=f"before {uid}"), broken=True)
    ref = bench.announce()
    news = bench.work(fetches=[Fetch(uid, ref, {}) for uid in "bcd"])
    assert [found.uid for found in news.arrived] == [uid for uid in "bcd" if uid not in failed]
    assert news.failed == []
    assert bench.entries() == 0


def test_a_payload_that_no_companion_wants_is_thrown_away(bench: Receiving) -> None:
    for uid in "bc":
        bench.fetch(uid, bench.announce(key=f"before {uid}"), broken=True)
    ref = bench.announce()
    assert not bench.work(fetches=[Fetch(uid, ref, {}) for uid in "bc"])
    assert bench.entries() == 0


def test_a_companion_that_fails_now_harms_no_other(bench: Receiving) -> None:
    ref = bench.announce()
    fetches = [
        Fetch("b", ref, {"broken": True}),
        Fetch("c", ref, {}),
        Fetch("d", ref, {"wrong": 0}),
    ]
    news = bench.work(fetches=fetches)
    assert errors(news) == [("b", "adapter"), ("d", "adapter")]
    assert [found.uid for found in news.arrived] == ["c"]


@pytest.mark.parametrize("recompute", [False, True])
def test_companions_learn_of_a_lost_payload_all_alike(bench: Receiving, recompute: bool) -> None:
    ref = bench.announce(recompute=recompute)
    bench.other.delete([ref.key or ""])
    news = bench.work(fetches=[Fetch(uid, ref, {}) for uid in "bc"])
    assert errors(news) == ([] if recompute else [("b", "connector"), ("c", "connector")])
    assert [found.plan for found in news.arrived] == [PromptPlan(IDS)] * (2 * recompute)
    assert bench.connector.statistics().failures == 1
    assert bench.io.recomputed_caches == 2 * recompute


def test_other_payloads_of_the_step_are_not_kept(bench: Receiving) -> None:
    """What is fetched once is let go of with its adapter: a step may bring many."""
    refs = [bench.store(key, Payload({"n": per_token(torch.ones(9))}), "watch") for key in "kl"]
    news = bench.work(fetches=[Fetch(uid, ref, {}) for uid, ref in zip("bc", refs, strict=True)])
    assert [found.key for found in news.arrived] == ["k", "l"]
    assert [alive for _, alive in WATCHED] == [[], [False]]


# --- a generation stage ---------------------------------------------------------------------------


def test_keys_and_values_are_kept_as_long_as_their_request(reader: Receiving) -> None:
    ref = reader.announce(reader.sent(blocks=False))
    found = arrived(reader.fetch("b", ref, wrong=0))  # its prompt is its own
    assert (found.cached, found.plan is None) == (0, False)
    for _ in range(2):
        cache = reader.io.cache("b")
        assert cache is not None
        keys = [layer[0] for layer in cache.layers[0]]
        assert all(torch.equal(*pair) for pair in zip(keys, reader.filled, strict=True))
    reader.io.removed("b")
    reader.news()
    assert reader.io.cache("b") is None
    assert len(reader.io) == 0


@pytest.mark.parametrize("recompute", [False, True])
def test_blocks_are_nothing_to_a_generation_model(reader: Receiving, recompute: bool) -> None:
    news = reader.fetch("b", reader.announce(recompute=recompute))
    assert errors(news) == ([] if recompute else [("b", "payload")])
    assert reader.io.cache("b") is None


def test_a_generation_request_may_do_without(reader: Receiving) -> None:
    """What was lost is its adapter's matter."""
    found = arrived(reader.fetch("b", Ref("there", "kv", 0, end=True, token_ids=IDS)))
    assert found.plan == PromptPlan(IDS)
    assert reader.io.cache("b") is None
