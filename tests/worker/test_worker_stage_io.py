"""What a step's orders bring on a request's outgoing edges, and whom a failure concerns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from antiphon.connector.inproc import InprocConnector
from antiphon.core.options import ConnectorSpec, OutEdge, StageOptions
from antiphon.core.retry import RetryPolicy
from antiphon.core.tickets import Accepted, Ended, Ticket
from antiphon.errors import AdapterError
from antiphon.payload.types import Payload, per_token
from antiphon.testing.fault_table import Fault
from antiphon.worker.stage_io import StageIO
from tiny_adapters import CALLS, SEEN
from worker_bench import Bench, errors, marks


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Every edge is full."""
    made = Bench()
    yield made
    made.close()


@pytest.fixture
def streams() -> Iterator[Bench]:
    """Every edge is a stream."""
    made = Bench(stream=True)
    yield made
    made.close()


# --- a request that goes well ---------------------------------------------------------------------


def test_tokens_become_one_payload_at_the_end(bench: Bench) -> None:
    assert not bench.open("a", "ids")
    assert not bench.accept("a", 4, 7)
    assert not bench.accept("a", 6, 8, 9)
    (ref,) = bench.end("a", 6).refs
    assert (ref.uid, ref.edge, ref.seq, ref.end) == ("a", "ids", 0, True)
    assert bench.ids([ref]) == [7, 8, 9]
    assert len(bench.io) == bench.entries() == 0


def test_tokens_of_the_last_step_come_before_the_end(bench: Bench) -> None:
    """Both in one step's orders: what was accepted is part of what ends."""
    bench.open("a", "ids")
    news = bench.work(tokens={"a": Accepted([5], 3)}, ended=[Ended("a", True, 3)])
    assert bench.ids(news.refs) == [5]


def test_everything_in_one_step(bench: Bench) -> None:
    news = bench.work(
        tickets=[Ticket("a", ("ids", "quiet"), {})],
        tokens={"a": Accepted([5], 3)},
        ended=[Ended("a", True, 3)],
    )
    assert [ref.edge for ref in news.refs] == ["ids", "quiet"]
    assert bench.ids(news.refs[:1]) == [5]
    assert not bench.io.wants_rows


def test_rows_are_released_up_to_the_last_token_that_was_forwarded(bench: Bench) -> None:
    """C68: the last accepted token has no row, however the request ended."""
    bench.open("a", "rows")
    bench.rows("a", 0, 3)
    bench.accept("a", 4, 7)
    assert SEEN["rows", "a"].positions == [0, 1, 2]
    bench.rows("a", 3, 1)
    bench.rows("a", 4, 1)  # a step ahead of the stop
    (ref,) = bench.end("a", 5).refs
    assert bench.take(ref).fields["rows"].tensor[:, 0].tolist() == [0, 1, 2, 3]
    assert not bench.io.wants_rows


def test_several_tokens_of_one_step_give_several_rows(bench: Bench) -> None:
    """C17: none is dropped or merged, and the one that was not forwarded has none."""
    bench.open("a", "rows", "ids")
    bench.rows("a", 0, 2)
    bench.accept("a", 3, 5)
    bench.rows("a", 2, 4)
    bench.accept("a", 7, 6, 7, 8, 9)
    assert SEEN["rows", "a"].positions == [0, 1, 2, 3, 4, 5]
    assert SEEN["ids", "a"].tokens == [5, 6, 7, 8, 9]


def test_payloads_leave_at_once_and_only_the_last_ends(streams: Bench) -> None:
    """C20: the first part does not wait for the second; what ends the stream may be empty."""
    streams.open("a", "parts")
    refs = [ref for n, ids in ((2, [1]), (4, [2, 3])) for ref in streams.accept("a", n, *ids).refs]
    assert streams.ids(refs) == [1, 2, 3]
    refs += streams.end("a", 4).refs
    assert marks(refs) == [(0, False, False), (1, False, False), (2, True, True)]


def test_nothing_to_say_is_an_explicit_empty_end(bench: Bench) -> None:
    """C115: on a full edge too, and nothing is stored for it."""
    bench.open("a", "ids", "rows", silent=True)
    news = bench.end("a", 1)
    assert [(ref.edge, *mark) for ref, mark in zip(news.refs, marks(news.refs), strict=True)] == [
        ("ids", 0, True, True),
        ("rows", 0, True, True),
    ]
    assert bench.entries() == 0


def test_what_was_collected_is_dropped_on_abort(bench: Bench) -> None:
    """C82: no payload, no end, no entry."""
    bench.open("a", "ids", "rows")
    bench.rows("a", 0, 3)
    bench.accept("a", 4, 7)
    assert not bench.end("a", 4, keep=False)
    assert len(bench.io) == bench.entries() == 0
    assert SEEN["ids", "a"].ends == 0


@pytest.mark.parametrize("mode", ["bench", "streams"])
def test_discarded_payloads_are_gone_whoever_stored_them(
    mode: str, request: pytest.FixtureRequest
) -> None:
    """C82."""
    bench: Bench = request.getfixturevalue(mode)
    bench.open("a", "ids")
    bench.accept("a", 2, 1)
    (mine,) = bench.end("a", 2).refs
    theirs = bench.store("k", Payload({"rows": per_token(torch.zeros(1, 2))}))
    bench.work(discards=[str(mine.key), str(theirs.key), "never stored"])
    assert bench.entries() == 0


# --- segments of a session ------------------------------------------------------------------------


def test_each_segment_has_its_own_adapters_numbers_and_rows(streams: Bench) -> None:
    """The second begins in the step that the first ends in; rows before `first` are not its own."""
    streams.open("s", "parts", "rows")
    streams.rows("s", 0, 3)
    refs = streams.work(
        tokens={"s": Accepted([1], 4)},
        ended=[Ended("s", True, 4)],
        tickets=[Ticket("s", ("parts", "rows"), {}, epoch=1, first=3)],
    ).refs
    assert [(ref.edge, ref.epoch, ref.seq, ref.end) for ref in refs] == [
        ("parts", 0, 0, False),
        ("parts", 0, 1, True),
        ("rows", 0, 0, True),
    ]
    streams.rows("s", 0, 6)  # the history is computed again with the new input
    refs = streams.work(tokens={"s": Accepted([2], 7, 1)}, ended=[Ended("s", True, 7, 1)]).refs
    assert [(ref.edge, ref.epoch, ref.seq, ref.end) for ref in refs] == [
        ("parts", 1, 0, False),
        ("parts", 1, 1, True),
        ("rows", 1, 0, True),
    ]
    assert SEEN["rows", "s"].positions == [3, 4, 5]
    assert len(streams.io) == 0


def test_tokens_of_an_interrupted_segment_are_not_the_next_ones(streams: Bench) -> None:
    streams.open("s", "ids")
    streams.work(
        ended=[Ended("s", False, 4)], tickets=[Ticket("s", ("ids",), {}, epoch=1, first=4)]
    )
    assert not streams.accept("s", 5, 9)  # of epoch 0, late
    (ref,) = streams.work(ended=[Ended("s", True, 5, 1)]).refs
    assert streams.ids([ref]) == []


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["open", "tokens", "rows", "end"])
def test_an_adapter_that_raises_fails_only_its_request(at: str) -> None:
    bench = Bench(fail=at)
    edge = "rows" if at == "rows" else "ids"
    news = [
        bench.work(tickets=[Ticket("bad", (edge,), {"broken": True}), Ticket("good", (edge,), {})])
    ]
    for uid in ("bad", "good"):
        if bench.io.row_log(uid) is not None:
            bench.rows(uid, 0, 2)
    both = {uid: Accepted([7], 3) for uid in ("bad", "good")}
    news.append(bench.work(tokens=both))
    news.append(bench.work(ended=[Ended("bad", True, 3), Ended("good", True, 3)]))
    assert [error for n in news for error in errors(n)] == [("bad", "adapter")]
    assert [ref.uid for n in news for ref in n.refs] == ["good"]
    assert len(bench.io) == 0
    bench.close()


def test_after_a_failure_the_request_is_left_alone(bench: Bench) -> None:
    """Steps may still be on their way: no second error, no payload, no call."""
    bench.open("a", "ids", "rows")
    bench.io.fail("a", AdapterError("its rows could not be had"))
    bench.io.fail("a", AdapterError("nor those of the step that was in flight"))
    assert errors(bench.news()) == [("a", "adapter")]
    assert bench.io.row_log("a") is None
    assert not bench.accept("a", 3, 1)
    assert not bench.end("a", 3)
    assert CALLS["tokens"] == CALLS["end"] == 0
    assert len(bench.io) == 0


def test_lost_rows_fail_their_request(bench: Bench) -> None:
    """They would be another request's, or another position's, if they were passed over."""
    bench.open("a", "rows")
    bench.rows("a", 0, 2)
    bench.rows("a", 3, 1)
    assert errors(bench.accept("a", 5, 1)) == [("a", "adapter")]


@pytest.mark.fault("shared-memory-full")
def test_a_connector_without_room_fails_only_the_request(fault: Fault) -> None:
    small = Bench(max_bytes=300, policy=RetryPolicy(attempts=1))
    for uid, count in (("big", 200), ("small", 1)):
        small.open(uid, "ids")
        small.accept(uid, count + 1, *range(count))
    news = small.work(ended=[Ended("big", True, 201), Ended("small", True, 2)])
    assert fault.error is not None
    assert errors(news) == [("big", fault.error.code)]
    assert [ref.uid for ref in news.refs] == ["small"]
    small.close()


@pytest.mark.parametrize("edges", [("nowhere",), ("ids", "nowhere")])
def test_an_unknown_edge_fails_the_request_once(bench: Bench, edges: tuple[str, ...]) -> None:
    assert errors(bench.open("a", *edges)) == [("a", "adapter")]
    assert not bench.accept("a", 3, 1)
    assert not bench.end("a", 3, keep=False)
    assert len(bench.io) == 0


# --- checks ---------------------------------------------------------------------------------------


def test_integrity_notices_rows_that_nobody_will_ask_for(bench: Bench) -> None:
    bench.open("a", "rows")
    producer = bench.io._producers.pop(("a", 0))
    with pytest.raises(AssertionError, match="rows"):
        bench.io.check_integrity()
    bench.io._producers["a", 0] = producer


@pytest.mark.parametrize(("name", "said"), [("Nobody", "Nobody"), ("SEEN", "not a class")])
def test_an_adapter_that_cannot_be_loaded_is_its_authors_fault(name: str, said: str) -> None:
    edge = OutEdge("e", f"tiny_adapters:{name}")
    options = StageOptions("here", ConnectorSpec("inproc", "x"), outputs=(edge,))
    connector = InprocConnector("x", 1)
    with pytest.raises(AdapterError, match=said):
        StageIO(options, "no model", connector)
    connector.close()
