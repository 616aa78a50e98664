"""Orders are given on one thread and carried out on another: nothing depends on which, or when."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, AsyncModelRunnerOutput, ModelRunnerOutput

from antiphon.core.tickets import Accepted, Arrived, Ended, Fetch, StageNews, StageWork, Ticket
from antiphon.payload.adapters import Input
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload
from antiphon.upstream.envelopes import NewsOnArrival, news_of
from antiphon.worker.device import CpuOps, HostCopy
from antiphon.worker.materialise import StepRow, materialise
from antiphon.worker.rows import CopiedRows, PendingRows
from worker_bench import SCRIPT, WIDTH, Bench, errors, marks

Finish = Callable[[Bench], StageNews | None]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(stream=True)
    yield made
    made.close()


def on_another_thread(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


class Output(AsyncModelRunnerOutput):
    """A step's output; `error` is what waiting for it raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def get_output(self) -> ModelRunnerOutput:
        if self._error is not None:
            raise self._error
        return EMPTY_MODEL_RUNNER_OUTPUT


# --- order ----------------------------------------------------------------------------------------


def test_orders_of_several_steps_are_carried_out_in_their_order(bench: Bench) -> None:
    """All of them wait until the first step's output is asked for, on another thread."""
    bench.io.submit(StageWork(tickets=[Ticket("a", ("parts",), {})]))
    for step in range(5):
        bench.io.submit(StageWork(tokens={"a": Accepted([step], step + 2)}))
    bench.io.submit(StageWork(ended=[Ended("a", True, 6)]))
    assert not bench.io.take_news()
    on_another_thread(bench.io.finish)
    refs = bench.io.take_news().refs
    assert marks(refs) == [(n, False, False) for n in range(5)] + [(5, True, True)]
    assert bench.ids(refs) == list(range(5))
    assert not bench.news()


def test_what_a_step_needs_to_know_takes_effect_at_once(bench: Bench) -> None:
    """It collects rows for those that began with its orders, not for those that ended."""
    bench.io.submit(StageWork(tickets=[Ticket("a", ("rows",), {})]))
    assert bench.io.row_log("a") is not None
    bench.io.submit(StageWork(ended=[Ended("a", False, 2)]))
    assert bench.io.row_log("a") is None
    assert not bench.io.wants_rows
    assert not bench.news()


def test_a_request_may_follow_one_of_its_name(bench: Bench) -> None:
    """The end of the first waits to be carried out when the second begins."""
    for _ in range(2):
        bench.io.submit(StageWork(tickets=[Ticket("a", ("ids",), {"silent": True})]))
        bench.io.submit(StageWork(ended=[Ended("a", True, 2)]))
    bench.io.finish()
    assert marks(bench.io.take_news().refs) == [(0, True, True)] * 2
    assert len(bench.io) == 0


class Late(HostCopy):
    """Rows whose copy takes until the test lets it end."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.waited_for = threading.Event()
        self.done = threading.Event()
        self._rows = rows

    def wait(self) -> torch.Tensor:
        self.waited_for.set()
        assert self.done.wait(timeout=60)
        return self._rows


def test_the_main_thread_waits_for_nobody(bench: Bench) -> None:
    """C105: steps go on, and their rows are noted, while another thread waits for a copy."""
    bench.open("a", "row-parts")
    log = bench.io.row_log("a")
    assert log is not None
    late = Late(torch.zeros(2, 1))
    log.append(PendingRows(0, 2, CopiedRows(late, 0, 2), {}))
    bench.io.submit(StageWork(tokens={"a": Accepted([1], 3)}))
    thread = threading.Thread(target=bench.io.finish)
    thread.start()
    assert late.waited_for.wait(timeout=60)
    bench.io.submit(StageWork(tickets=[Ticket("b", ("rows",), {})]))
    bench.rows("a", 2, 1)
    bench.rows("b", 0, 3)
    bench.io.submit(StageWork(tokens={"a": Accepted([2], 4)}, ended=[Ended("a", True, 4)]))
    bench.io.removed("a")
    assert (bench.io.row_log("a"), bench.io.prompt_rows("a")) == (None, None)
    late.done.set()
    thread.join()
    refs = bench.news().refs
    rows = [bench.take(ref).fields["rows"].tensor[:, 0].tolist() for ref in refs if ref.key]
    assert rows == [[0.0, 0.0], [2.0]]


def test_two_threads_that_finish_take_turns(bench: Bench) -> None:
    """The second would send later rows while the first still waits for the earlier ones."""
    bench.open("a", "row-parts")
    log = bench.io.row_log("a")
    assert log is not None
    late = Late(torch.zeros(2, 1))
    log.append(PendingRows(0, 2, CopiedRows(late, 0, 2), {}))
    bench.io.submit(StageWork(tokens={"a": Accepted([1], 3)}))
    threads = [threading.Thread(target=bench.io.finish) for _ in range(2)]
    threads[0].start()
    assert late.waited_for.wait(timeout=60)
    bench.rows("a", 2, 1)
    bench.io.submit(StageWork(tokens={"a": Accepted([2], 4)}))
    threads[1].start()
    threads[1].join(timeout=0.1)  # it would end at once if it took no turn
    late.done.set()
    for thread in threads:
        thread.join()
    refs = bench.io.take_news().refs
    assert [len(bench.take(ref).fields["rows"].tensor) for ref in refs] == [2, 1]


class Unwritten(HostCopy):
    """Host memory that holds garbage until the copy into it has been waited for."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._host = torch.full_like(rows, torch.nan)
        self._rows = rows.clone()

    def wait(self) -> torch.Tensor:
        return self._host.copy_(self._rows)


class LateOps(CpuOps):
    """A device whose copies are ordered behind its steps, as on a stream of its own."""

    def snapshot(self, rows: torch.Tensor) -> HostCopy:
        return Unwritten(rows)

    def to_host(self, tensor: torch.Tensor) -> HostCopy:
        return Unwritten(tensor)


@pytest.mark.parametrize("stream", [False, True], ids=["full", "stream"])
def test_nothing_is_read_before_it_is_written(stream: bool) -> None:
    """C106: whoever sends rows waits for their copy, on whichever thread; the step's own buffer has
    been overwritten by then.
    """
    bench = Bench(stream=stream)
    bench.open("a", "row-parts")
    log = bench.io.row_log("a")
    assert log is not None
    buffer = torch.empty(4, 1)
    for first in range(0, 12, 4):
        buffer[:, 0] = torch.arange(first, first + 4)
        materialise(LateOps(), [StepRow(log, 0, 0, 4, first)], buffer, {}, 1)
        bench.io.submit(StageWork(tokens={"a": Accepted([1], first + 4)}))
        buffer.fill_(torch.nan)
    bench.io.submit(StageWork(ended=[Ended("a", True, 13)]))
    on_another_thread(bench.io.finish)
    refs = bench.io.take_news().refs
    sent = [
        row
        for ref in refs
        if ref.key is not None
        for row in bench.take(ref).fields["rows"].tensor[:, 0].tolist()
    ]
    assert sent == list(map(float, range(12)))
    bench.close()


# --- news -----------------------------------------------------------------------------------------


def test_a_failure_is_said_once_whoever_finds_it(bench: Bench) -> None:
    bench.open("a", "row-parts", broken=True)
    bench.rows("a", 0, 3)
    for num_tokens in (2, 3, 4):
        bench.io.submit(StageWork(tokens={"a": Accepted([1], num_tokens)}))
    threads = [threading.Thread(target=bench.io.finish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors(bench.io.take_news()) == [("a", "adapter")]
    assert not bench.news()


def test_the_news_come_with_the_output_that_is_waited_for(bench: Bench) -> None:
    bench.io.submit(StageWork(tickets=[Ticket("a", ("nowhere",), {})]))
    output = NewsOnArrival(Output(), bench.io.finish, bench.io.take_news)
    news = news_of(output.get_output())
    assert news is not None
    assert errors(news) == [("a", "adapter")]
    assert (
        news_of(NewsOnArrival(Output(), bench.io.finish, bench.io.take_news).get_output()) is None
    )


def test_news_of_an_output_that_raises_come_with_the_next(bench: Bench) -> None:
    """C85: they would be lost, and whoever waits for a chunk would wait for good."""
    SCRIPT["b"].append(Input())
    ref = bench.store("k", Payload({}), "script")
    bench.io.submit(StageWork(fetches=[Fetch("b", ref, {})]))
    fallen = NewsOnArrival(Output(RuntimeError("nan")), bench.io.finish, bench.io.take_news)
    with pytest.raises(RuntimeError, match="nan"):
        fallen.get_output()
    news = news_of(NewsOnArrival(Output(), bench.io.finish, bench.io.take_news).get_output())
    assert news is not None
    assert [found.uid for found in news.arrived] == ["b"]


# --- the same story, finished in different ways ---------------------------------------------------


@dataclass(frozen=True)
class Told:
    """All the news of a story."""

    refs: list[Ref]
    contents: list[list[object]]  # of the payloads' one field, in the order of their refs
    arrived: list[Arrived]
    failed: list[str]


def tell(stream: bool, finish: Finish) -> Told:
    """Two requests, one of them broken, a chunk, a put that fails and its retry; all their news."""
    bench = Bench(stream=stream)
    bench.faults.fail_puts(1)
    SCRIPT["c"].append(Input(rows=torch.ones(1, WIDTH)))
    chunk = bench.store("k", Payload({}), "script")
    steps = [
        StageWork(
            tickets=[
                Ticket("a", ("row-parts", "ids"), {}),
                Ticket("bad", ("row-parts",), {"broken": True}),
            ]
        ),
        StageWork(tokens={"a": Accepted([5], 4), "bad": Accepted([5], 4)}),
        StageWork(tokens={"a": Accepted([6], 5)}, fetches=[Fetch("c", chunk, {})]),
        StageWork(tokens={"a": Accepted([7, 8], 7)}, ended=[Ended("bad", False)]),
        StageWork(ended=[Ended("a", True, 7)]),
        StageWork(retry=True),
    ]
    counts = [3, 1, 2, 1, 0, 0]
    told: list[StageNews | None] = []
    first = 0
    for work, count in zip(steps, counts, strict=True):
        bench.io.submit(work)
        for uid in ("a", "bad"):
            if count and bench.io.row_log(uid) is not None:
                bench.rows(uid, first, count)
        first += count
        told.append(finish(bench))
    told.append(bench.news())
    news = [n for n in told if n is not None]
    refs = [ref for n in news for ref in n.refs]
    fields = [bench.take(ref).fields.values() for ref in refs if ref.key is not None]
    assert len(bench.io) == 1  # the chunk's consumer
    bench.close()
    return Told(
        refs,
        [field.tensor.tolist() for (field,) in fields],
        [found for n in news for found in n.arrived],
        [uid for n in news for uid, _ in n.failed],
    )


def at_once(bench: Bench) -> StageNews:
    return bench.news()


def elsewhere(bench: Bench) -> StageNews:
    on_another_thread(bench.io.finish)
    return bench.io.take_news()


def at_the_end(bench: Bench) -> None:
    return None


@pytest.mark.parametrize("stream", [False, True], ids=["full", "stream"])
@pytest.mark.parametrize("finish", [elsewhere, at_the_end])
def test_the_news_do_not_depend_on_when_and_where(finish: Finish, stream: bool) -> None:
    """C105: synchronous scheduling finishes each step at once, the other one later, elsewhere."""
    expected = tell(stream, at_once)
    assert tell(stream, finish) == expected
    assert [(ref.edge, ref.end) for ref in expected.refs if ref.end] == [
        ("ids", True),
        ("row-parts", True),
    ]
    assert (len(expected.arrived), expected.failed) == (1, ["bad"])


def test_full_and_stream_edges_carry_the_same() -> None:
    """C22: row for row and id for id."""
    found = []
    for stream in (False, True):
        told = tell(stream, elsewhere)
        by_edge: dict[str, list[object]] = defaultdict(list)
        stored = [ref for ref in told.refs if ref.key is not None]
        for ref, content in zip(stored, told.contents, strict=True):
            by_edge[ref.edge] += content
        found.append(by_edge)
    rows: list[object] = [[float(n)] for n in range(6)]
    assert found[0] == found[1] == {"row-parts": rows, "ids": [5, 6, 7, 8]}
