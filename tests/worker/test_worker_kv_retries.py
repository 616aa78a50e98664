"""A cache that cannot be stored now waits for its turn, and is answered whatever becomes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from antiphon.core.retry import RetryPolicy
from antiphon.core.tickets import StageNews
from kv_bench import Shipping, ref_of, refusal
from tiny_adapters import CALLS
from worker_bench import errors

WAITS = [0.05, 0.1, 0.2, 0.4]  # s, of the default policy


@pytest.fixture
def bench() -> Iterator[Shipping]:
    made = Shipping()
    yield made
    made.close()


def test_a_store_that_fails_is_tried_again_when_it_is_ordered(bench: Shipping) -> None:
    bench.open("a", "kv")
    bench.faults.fail_puts(2)
    news = bench.ship()
    assert (news.acks, news.retry_in_s) == ([], WAITS[0])
    assert len(bench.io) == 2
    assert not bench.news()  # nothing happens by itself
    news = bench.work(retry=True)
    assert (news.acks, news.retry_in_s) == ([], WAITS[1])
    found = bench.cache_of(ref_of(bench.work(retry=True)))
    assert all(torch.equal(*pair) for pair in zip(found, bench.filled, strict=True))
    assert len(bench.io) == 1
    assert CALLS["end"] == 1  # the payload was made once


def test_a_store_that_fails_again_and_again_is_given_up(bench: Shipping) -> None:
    bench.open("a", "kv")
    bench.faults.fail_puts()
    waits = [bench.ship().retry_in_s]
    waits += [bench.work(retry=True).retry_in_s for _ in range(3)]
    assert waits == WAITS
    news = bench.work(retry=True)
    assert refusal(news) == "connector"
    assert "after 5 attempts" in str(news.acks[0].error)
    assert (len(bench.io), bench.entries()) == (1, 0)
    assert not bench.work(retry=True)


def test_without_retries_a_failure_is_an_answer_at_once() -> None:
    bench = Shipping(policy=RetryPolicy(attempts=1))
    bench.open("a", "kv")
    bench.faults.fail_puts()
    assert refusal(bench.ship()) == "connector"
    bench.close()


def test_no_room_is_a_failed_store() -> None:
    bench = Shipping(max_bytes=500)
    bench.open("a", "kv")
    assert bench.ship().retry_in_s == WAITS[0]
    bench.close()


def test_each_waits_for_itself(bench: Shipping) -> None:
    """Another one's failure is not this one's attempt, be it a cache or a chunk."""
    bench.open("a", "kv")
    bench.open("b", "ids")
    bench.faults.fail_puts(matching="a/kv")
    bench.ship()
    bench.work(retry=True)
    assert bench.work(retry=True).retry_in_s == WAITS[2]  # 0.2 s for the cache
    bench.faults.fail_puts(1, matching="b/ids")
    news = bench.end("b", 3)
    assert (news.refs, news.retry_in_s) == ([], WAITS[0])
    news = bench.work(retry=True)  # after 0.05 s
    assert [ref.edge for ref in news.refs] == ["ids"]
    assert news.retry_in_s == pytest.approx(0.15)
    bench.faults.heal()
    ref_of(bench.work(retry=True))
    assert bench.ids(news.refs) == []  # the adapter was told of no token


def test_a_chunk_that_waits_longer_than_a_cache_is_not_tried_early(bench: Shipping) -> None:
    bench.open("a", "kv")
    bench.open("b", "ids")
    bench.faults.fail_puts(matching="b/ids")
    bench.end("b", 3)
    bench.work(retry=True)
    bench.faults.fail_puts(1, matching="a/kv")
    assert bench.ship().retry_in_s == WAITS[0]
    puts = bench.connector.statistics().failures
    news = bench.work(retry=True)
    assert ref_of(StageNews(acks=news.acks)).edge == "kv"
    assert news.retry_in_s == pytest.approx(0.05)
    assert bench.connector.statistics().failures == puts


@pytest.mark.parametrize("how", ["abort", "failure"])
def test_who_ends_while_its_cache_waits_lets_go_of_it(bench: Shipping, how: str) -> None:
    bench.open("a", "kv", "row-parts", broken=how == "failure")
    bench.open("b", "kv")
    bench.faults.fail_puts(1)
    bench.ship()
    if how == "abort":
        news = bench.end("a", 12, keep=False)
    else:
        bench.rows("a", 0, 3)
        news = bench.accept("a", 4, 7)
        assert errors(news) == [("a", "adapter")]
    assert refusal(StageNews(acks=news.acks)) == "kv_transfer"
    assert not bench.work(retry=True).acks
    assert bench.entries() == 0
    ref_of(bench.ship("b"))


def test_who_ends_well_while_its_cache_waits_sends_it(bench: Shipping) -> None:
    bench.open("a", "kv")
    bench.faults.fail_puts(1)
    bench.ship()
    assert not bench.end("a", 12)
    assert len(bench.io) == 1
    assert bench.take(ref_of(bench.work(retry=True))).cache is not None
    assert len(bench.io) == 0


def test_several_caches_of_one_step(bench: Shipping) -> None:
    """Each is answered by its generation, one's failure is not another's."""
    for uid in "abc":
        bench.open(uid, "kv")
    orders = [bench.order("a"), bench.order("b", block_ids=((1,),)), bench.order("c")]
    acks = bench.work(ships=orders).acks
    assert [(ack.uid, ack.generation, ack.error is None) for ack in acks] == [
        ("a", 1, True),
        ("b", 2, False),
        ("c", 3, True),
    ]
    assert bench.entries() == 2
