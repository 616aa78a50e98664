"""The order of a stream's chunks."""

from __future__ import annotations

import pytest
from core_refs import chunk, end_mark
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.budget import EdgeLimits
from antiphon.core.chunks import MAX_AHEAD, ChunkOrder, Verdict
from antiphon.errors import PayloadError
from antiphon.payload.ref import Ref


@pytest.fixture
def order() -> ChunkOrder:
    return ChunkOrder()


def seqs(refs: list[Ref]) -> list[int]:
    return [ref.seq for ref in refs]


def feed(order: ChunkOrder, *refs: Ref) -> list[Verdict]:
    return [order.offer(ref) for ref in refs]


# --- the order ------------------------------------------------------------------------------------


def test_chunks_in_order_are_taken_as_they_come(order: ChunkOrder) -> None:
    for seq in range(3):
        assert order.offer(chunk(seq)) is Verdict.ACCEPTED
        assert order.take() == [chunk(seq)]


def test_a_chunk_is_taken_once(order: ChunkOrder) -> None:
    order.offer(chunk(0))
    order.take()
    assert order.take() == []


def test_a_gap_holds_back_what_is_behind_it(order: ChunkOrder) -> None:
    feed(order, chunk(0), chunk(2), chunk(3))
    assert seqs(order.take()) == [0]
    assert order.take() == []
    order.offer(chunk(1))
    assert seqs(order.take()) == [1, 2, 3]
    assert not order.ahead


def test_an_end_that_overtakes_waits_for_its_own_chunks(order: ChunkOrder) -> None:
    """C107: `done` is never handed on before what it ends."""
    order.offer(end_mark(2))
    assert order.take() == []
    feed(order, chunk(1), chunk(0))
    assert seqs(order.take()) == [0, 1, 2]


def test_a_stream_without_its_end_takes_more(order: ChunkOrder) -> None:
    feed(order, chunk(0), chunk(1))
    order.take()
    assert order.end_seq is None
    assert order.offer(chunk(2)) is Verdict.ACCEPTED


def test_streams_do_not_wait_for_each_other() -> None:
    """C107: no head-of-line blocking between requests."""
    held_up, free = ChunkOrder(), ChunkOrder()
    held_up.offer(chunk(1))
    free.offer(chunk(0))
    assert held_up.take() == []
    assert seqs(free.take()) == [0]


# --- chunks that come too often or too late -------------------------------------------------------


@pytest.mark.parametrize("seq", [0, 2], ids=["taken", "behind a gap"])
def test_a_repeat_is_a_duplicate_and_changes_nothing(order: ChunkOrder, seq: int) -> None:
    feed(order, chunk(0), chunk(2))
    order.take()
    assert order.offer(chunk(seq)) is Verdict.DUPLICATE
    assert order.next_seq == 1
    assert order.ahead == {2: chunk(2)}


def test_a_repeated_end_is_a_duplicate(order: ChunkOrder) -> None:
    order.offer(chunk(0, end=True))
    assert order.offer(chunk(0, end=True)) is Verdict.DUPLICATE
    order.take()
    assert order.offer(chunk(0, end=True)) is Verdict.DUPLICATE


def test_what_comes_behind_the_end_is_late(order: ChunkOrder) -> None:
    order.offer(chunk(1, end=True))
    assert feed(order, chunk(2), end_mark(3)) == [Verdict.LATE, Verdict.LATE]
    assert order.offer(chunk(0)) is Verdict.ACCEPTED
    assert seqs(order.take()) == [0, 1]


def test_chunks_behind_the_end_are_given_back_though_they_came_before_it(
    order: ChunkOrder,
) -> None:
    feed(order, chunk(1), chunk(4), chunk(3))
    assert order.beyond_end() == []
    order.offer(chunk(2, end=True))
    assert sorted(seqs(order.beyond_end())) == [3, 4]
    assert order.beyond_end() == []
    order.offer(chunk(0))
    assert seqs(order.take()) == [0, 1, 2]
    assert order.offer(chunk(3)) is Verdict.LATE


# --- the bound ------------------------------------------------------------------------------------


def at_the_bound(order: ChunkOrder) -> None:
    """As many chunks as may wait, and chunk 0 is missing."""
    feed(order, *(chunk(seq) for seq in range(1, MAX_AHEAD + 1)))


def test_the_bound_is_above_what_a_producer_has_under_way() -> None:
    assert EdgeLimits().request_chunks < MAX_AHEAD


def test_too_many_chunks_behind_a_gap_are_an_error(order: ChunkOrder) -> None:
    at_the_bound(order)
    with pytest.raises(PayloadError, match=r"than 4096 .* 'codes' wait for chunk 0, .* missing"):
        order.offer(chunk(MAX_AHEAD + 1))


def test_the_chunk_that_is_too_much_is_not_lost(order: ChunkOrder) -> None:
    """Whoever gives the stream up frees the payloads of `ahead`: this one is among them."""
    at_the_bound(order)
    with pytest.raises(PayloadError):
        order.offer(chunk(MAX_AHEAD + 1))
    assert order.ahead[MAX_AHEAD + 1] == chunk(MAX_AHEAD + 1)


def test_the_missing_chunk_is_welcome_at_the_bound(order: ChunkOrder) -> None:
    at_the_bound(order)
    assert order.offer(chunk(0)) is Verdict.ACCEPTED
    assert seqs(order.take()) == list(range(MAX_AHEAD + 1))


def test_repeats_and_late_chunks_are_no_error_at_the_bound(order: ChunkOrder) -> None:
    feed(order, *(chunk(seq, end=seq == MAX_AHEAD) for seq in range(1, MAX_AHEAD + 1)))
    assert order.offer(chunk(1)) is Verdict.DUPLICATE
    assert order.offer(chunk(MAX_AHEAD + 1)) is Verdict.LATE


# --- against a model ------------------------------------------------------------------------------


def naive(arrivals: list[Ref]) -> tuple[list[int], set[int]]:
    """What can be applied after these arrivals, and what lies behind the end: sort and look."""
    ends = [ref.seq for ref in arrivals if ref.end]
    arrived = {ref.seq for ref in arrivals}
    beyond = {seq for seq in arrived if ends and seq > ends[0]}
    in_order: list[int] = []
    while len(in_order) in arrived - beyond:
        in_order.append(len(in_order))
    return in_order, beyond


@st.composite
def arrivals_of_a_stream(draw: st.DrawFn) -> tuple[int, list[Ref]]:
    """The number of a stream's chunks, and them in any order with losses, repeats and strays.

    A stray is numbered behind the end: it belongs to no stream that keeps the protocol.
    """
    count = draw(st.integers(1, 12))
    bare_end = draw(st.booleans())
    stream = [chunk(seq) for seq in range(count - 1)]
    stream.append(end_mark(count - 1) if bare_end else chunk(count - 1, end=True))
    copies = draw(st.lists(st.sampled_from([1, 1, 1, 2, 3, 0]), min_size=count, max_size=count))
    sent = [ref for ref, times in zip(stream, copies, strict=True) for _ in range(times)]
    strays = draw(st.lists(st.integers(count, count + 3).map(chunk), max_size=2))
    return count, draw(st.permutations(sent + strays))


@given(arrivals_of_a_stream())
def test_any_order_with_losses_repeats_and_strays(stream: tuple[int, list[Ref]]) -> None:
    """C107: nothing is lost, skipped or repeated, and the end comes last."""
    _, arrivals = stream
    order = ChunkOrder()
    taken: list[int] = []
    rejected: list[int] = []  # late ones, and those found to lie behind the end
    for number, ref in enumerate(arrivals, start=1):
        repeated = ref.seq in seqs(arrivals[: number - 1])
        verdict = order.offer(ref)
        if verdict is Verdict.LATE:
            rejected.append(ref.seq)
        else:
            assert (verdict is Verdict.DUPLICATE) == repeated
        rejected += seqs(order.beyond_end())
        taken += seqs(order.take())
        in_order, beyond = naive(arrivals[:number])
        assert taken == in_order
        assert set(rejected) == beyond
    assert set(taken) | set(rejected) | set(order.ahead) == {ref.seq for ref in arrivals}


@given(st.integers(1, 40).flatmap(lambda n: st.permutations(range(n))))
def test_every_permutation_without_losses_is_put_in_order(arrival: list[int]) -> None:
    """C107: no loss of words."""
    order = ChunkOrder()
    taken: list[Ref] = []
    for seq in arrival:
        order.offer(chunk(seq, end=seq == len(arrival) - 1))
        taken += order.take()
    assert taken == [chunk(seq, end=seq == len(arrival) - 1) for seq in range(len(arrival))]
