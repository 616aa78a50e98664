"""Every order to ship a cache is answered once: by a ref, or by the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from antiphon.core.tickets import Accepted, Ended, KvAck, KvShip, StageNews, StageWork, Ticket
from antiphon.errors import PayloadError
from antiphon.payload import wire
from kv_bench import BLOCKS, EDGES, IDS, LENGTH, Shipping, ref_of, refusal
from tiny_adapters import CALLS, SEEN
from worker_bench import Bench, errors, marks


@pytest.fixture
def bench() -> Iterator[Shipping]:
    made = Shipping()
    yield made
    made.close()


# --- what leaves ----------------------------------------------------------------------------------


def test_a_cache_leaves_with_what_the_adapter_makes(bench: Shipping) -> None:
    bench.open("a", "kv")
    news = bench.ship(salt="s")
    ref = ref_of(news)
    assert news.acks[0] == KvAck("a", 1, ref)
    assert (ref.uid, ref.edge, ref.seq, ref.end, ref.epoch) == ("a", "kv", 0, True, 0)
    assert ref.key == "a/kv/0/kv1"
    payload = bench.take(ref)
    assert payload.fields["ids"].tensor.tolist() == [1]
    assert payload.token_ids == IDS
    assert payload.cache is not None
    assert (payload.cache.header.length, payload.cache.header.salt) == (LENGTH, "s")
    assert (bench.entries(), len(bench.io)) == (0, 1)  # the request itself goes on


def test_the_cache_is_the_requests(bench: Shipping) -> None:
    bench.open("a", "kv")
    found = bench.cache_of(ref_of(bench.ship()))
    assert all(torch.equal(*pair) for pair in zip(found, bench.filled, strict=True))


def test_keys_and_values_leave_by_position_where_the_edge_wants_them(bench: Shipping) -> None:
    bench.open("a", "kv-tokens")
    cache = bench.take(ref_of(bench.ship(edge="kv-tokens"))).cache
    assert cache is not None
    assert cache.header.form == "tokens"
    found = [layer[0] for layer in cache.layers[0]]
    assert all(torch.equal(*pair) for pair in zip(found, bench.filled, strict=True))


def test_an_adapter_may_make_nothing(bench: Shipping) -> None:
    bench.open("a", "kv-none", silent=True)
    payload = bench.take(ref_of(bench.ship(edge="kv-none")))
    assert not payload.fields
    assert payload.cache is not None


def test_tokens_of_the_same_step_come_first(bench: Shipping) -> None:
    """And the end behind: ticket, tokens, cache and end may be one step's orders."""
    news = bench.work(
        tickets=[Ticket("a", ("kv-none",), {})],
        tokens={"a": Accepted([7, 8], 12)},
        ships=[bench.order(edge="kv-none")],
        ended=[Ended("a", True, 12)],
    )
    assert bench.take(ref_of(news)).fields["ids"].tensor.tolist() == [7, 8]
    assert len(bench.io) == bench.entries() == 0


@pytest.mark.parametrize(("name", "given"), [("kv-none", ()), ("kv-ids", IDS)])
def test_token_ids_are_announced_only_where_they_may_replace_the_cache(
    bench: Shipping, name: str, given: tuple[int, ...]
) -> None:
    bench.open("a", name)
    ref = ref_of(bench.ship(edge=name))
    assert ref.token_ids == given
    assert bench.take(ref).token_ids == IDS


def test_ids_that_do_not_say_it_all_replace_nothing(bench: Shipping) -> None:
    """A salted prompt is made of more than its ids: nobody could compute it from them."""
    bench.open("a", "kv-ids")
    ref = ref_of(bench.ship(edge="kv-ids", salt="voice"))
    assert ref.token_ids == ()
    assert bench.take(ref).token_ids == IDS


@pytest.mark.parametrize("name", ["kv", "kv-sum"])
def test_a_checksum_where_the_edge_wants_one(bench: Shipping, name: str) -> None:
    bench.open("a", name)
    ref = ref_of(bench.ship(edge=name))
    assert ref.key is not None
    data = bytearray(bench.other.take(ref.key))
    data[-100] ^= 1
    if name == "kv":
        assert wire.decode(data).cache is not None
        return
    with pytest.raises(PayloadError, match="checksum"):
        wire.decode(data)


def test_what_the_step_writes_afterwards_does_not_leave(bench: Shipping) -> None:
    """The cache is read when the order comes, not when it is carried out."""
    bench.open("a", "kv")
    order = bench.order()
    bench.io.submit(StageWork(ships=[order]))
    for paged in bench.engine.paged[0]:
        paged.tensor[BLOCKS[0][-1]] = 9  # the last block, partly filled: the request goes on in it
    found = bench.cache_of(ref_of(bench.news()))
    assert all(torch.equal(*pair) for pair in zip(found, bench.filled, strict=True))


# --- afterwards -----------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
def test_what_has_been_shipped_sends_nothing_at_its_end(bench: Shipping, keep: bool) -> None:
    bench.open("a", "kv", "ids")
    key = ref_of(bench.ship()).key
    news = bench.end("a", 12, keep=keep)
    assert [ref.edge for ref in news.refs] == (["ids"] if keep else [])
    assert news.acks == []
    assert bench.other.delete([key or ""]) == 1


def test_the_adapter_hears_nothing_more_and_others_do(bench: Shipping) -> None:
    bench.open("a", "kv-none", "kv-rows", "ids", "rows")
    for first in (0, 3):
        bench.rows("a", first, 3)
    bench.accept("a", 4, 7)
    for name in ("kv-none", "kv-rows"):
        ref_of(bench.ship(edge=name))
    bench.accept("a", 6, 8, 9)
    bench.end("a", 6)
    assert SEEN["kv-none", "a"].tokens == [7]
    assert SEEN["ids", "a"].tokens == [7, 8, 9]
    assert SEEN["kv-rows", "a"].positions == [0, 1, 2]
    assert SEEN["rows", "a"].positions == [0, 1, 2, 3, 4]
    assert [SEEN[name, "a"].ends for name in ("kv-none", "kv-rows", "ids", "rows")] == [1] * 4


def test_a_request_that_was_never_shipped_sends_an_empty_end(bench: Shipping) -> None:
    """Whatever its adapter has: its consumer waits for a cache."""
    bench.open("a", "kv", "kv-many")
    bench.accept("a", 3, 1, 2)
    news = bench.end("a", 3)
    assert [(ref.edge, *mark) for ref, mark in zip(news.refs, marks(news.refs), strict=True)] == [
        ("kv", 0, True, True),
        ("kv-many", 0, True, True),
    ]
    assert CALLS["end"] == bench.entries() == 0


def test_an_abort_before_anything_was_shipped_sends_nothing(bench: Shipping) -> None:
    bench.open("a", "kv")
    assert not bench.end("a", 3, keep=False)


def test_a_cache_is_shipped_once(bench: Shipping) -> None:
    bench.open("a", "kv")
    key = ref_of(bench.ship()).key
    assert refusal(bench.ship()) == "kv_transfer"
    assert bench.other.delete([key or ""]) == 1


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "code"),
    [
        ({"block_ids": ((7, 2, 99),)}, "kv_transfer"),
        ({"block_ids": ((7, 2),)}, "kv_transfer"),
        ({"block_ids": ((7, 2, 3), (1,))}, "kv_transfer"),
        ({"token_ids": IDS[:9]}, "payload"),
        ({"token_ids": (*IDS[:9], 1 << 40)}, "payload"),
        ({"edge": "kv-many"}, "adapter"),
        ({"edge": "kv-broken"}, "adapter"),
        ({"edge": "kv-open"}, "payload"),
        ({"edge": "ids"}, "kv_transfer"),
        ({"edge": "nowhere"}, "kv_transfer"),
        ({"uid": "nobody"}, "kv_transfer"),
    ],
)
def test_a_failure_is_an_answer_and_no_success(
    bench: Shipping, over: dict[str, Any], code: str
) -> None:
    """The scheduler decides what becomes of the request; here nothing is left of the attempt."""
    names = [e.name for e in EDGES]
    bench.open("a", *names, "ids", broken=True, rest=2)
    assert refusal(bench.ship(**over)) == code
    assert bench.entries() == 0
    if (name := over.get("edge", "kv")) in names and "uid" not in over:
        assert refusal(bench.ship(edge=name)) == "kv_transfer"  # it is over on this edge
    ref_of(bench.ship(edge="kv-none"))


def test_an_engine_without_caches_hands_none_over() -> None:
    bench = Bench(outputs=EDGES)
    bench.open("a", "kv")
    assert refusal(bench.work(ships=[KvShip("a", "kv", 0, 1, LENGTH, IDS, BLOCKS)])) == (
        "kv_transfer"
    )
    bench.close()


def test_a_request_that_has_failed_is_answered(bench: Shipping) -> None:
    bench.open("a", "kv", "row-parts", broken=True)
    bench.rows("a", 0, 3)
    news = bench.work(tokens={"a": Accepted([7], 4)}, ships=[bench.order()])
    assert errors(news) == [("a", "adapter")]
    assert refusal(StageNews(acks=news.acks)) == "kv_transfer"
    assert bench.entries() == 0
