"""What nobody wants is not made: no rows, no calls, no orders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from antiphon.core.tickets import Accepted, Ended, StageNews, Ticket
from tiny_adapters import CALLS, SEEN
from worker_bench import Bench


@pytest.fixture(params=[False, True], ids=["full", "stream"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(stream=request.param)
    yield made
    made.close()


def test_each_edge_says_what_it_wants(bench: Bench) -> None:
    assert bench.io.row_edges == ["rows", "row-parts"]
    assert bench.io.quiet_edges == ["quiet"]
    assert bench.io.side_outputs == frozenset()


def test_a_request_without_edges_is_unknown_to_the_worker(bench: Bench) -> None:
    """C81: it costs what it costs without a pipeline."""
    assert bench.io.row_log("a") is None
    assert not bench.io.wants_rows
    assert bench.news() == StageNews()
    assert not CALLS


def test_an_edge_that_wants_ids_gets_them_without_rows(bench: Bench) -> None:
    """`requires_token_updates` alone: every accepted id in order, and no step collects anything."""
    bench.open("a", "ids")
    for step in range(5):
        assert bench.io.row_log("a") is None
        assert not bench.io.wants_rows
        bench.accept("a", 4 + step, 10 + step)
    (ref,) = bench.end("a", 8).refs
    assert bench.ids([ref]) == [10, 11, 12, 13, 14]
    assert SEEN["ids", "a"].steps == []
    assert CALLS == {"open": 1, "tokens": 5, "end": 1}


def test_an_edge_that_wants_rows_is_not_told_of_ids(bench: Bench) -> None:
    bench.open("a", "rows")
    bench.rows("a", 0, 3)
    bench.accept("a", 4, 7)
    assert CALLS == {"open": 1, "rows": 1}


def test_edges_of_one_request_get_what_each_wants(bench: Bench) -> None:
    bench.open("a", "ids", "rows", "quiet")
    bench.rows("a", 0, 3)
    bench.accept("a", 4, 7)
    assert (SEEN["ids", "a"].tokens, SEEN["ids", "a"].steps) == ([7], [])
    assert (SEEN["rows", "a"].tokens, SEEN["rows", "a"].positions) == ([], [0, 1, 2])
    assert (CALLS["tokens"], CALLS["rows"]) == (1, 1)


def test_a_quiet_edge_is_called_at_the_end_alone(bench: Bench) -> None:
    """Even if tokens were sent to it."""
    news = bench.work(tickets=[Ticket("a", ("quiet",), {})], tokens={"a": Accepted([7], 4)})
    assert not news
    assert bench.io.row_log("a") is None
    assert not bench.io.wants_rows
    (ref,) = bench.work(ended=[Ended("a", True, 4)]).refs
    assert bench.ids([ref]) == [1]
    assert CALLS == {"open": 1, "end": 1}
