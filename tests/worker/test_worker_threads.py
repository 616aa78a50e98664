"""A main thread and an output thread at work at the same time, on hundreds of requests."""

from __future__ import annotations

import queue
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from antiphon.core.tickets import Accepted, Ended, Fetch, StageNews, StageWork, Ticket
from antiphon.payload.adapters import Input
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload
from worker_bench import SCRIPT, WIDTH, Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(stream=True)
    yield made
    made.close()


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@dataclass
class Live:
    """A request of the stress test: its index says how long it runs and what goes wrong."""

    index: int
    begun: int
    computed: int = 0

    @property
    def uid(self) -> str:
        return f"r{self.index}"

    @property
    def prompt(self) -> int:
        return 1 + self.index % 7

    @property
    def length(self) -> int:
        return self.prompt + 4 + self.index % 11

    @property
    def broken(self) -> bool:
        return self.index % 5 == 4


STEPS, AHEAD = 300, 2  # a step's tokens are accepted with the orders of the step after the next


def drive(bench: Bench, outputs: queue.Queue[bool]) -> dict[str, Live]:
    """The main thread's part: a request begins in every step, and each computes in each step."""
    live: dict[str, Live] = {}
    everyone: dict[str, Live] = {}
    for step in range(STEPS):
        work = StageWork()
        for request in [*live.values()]:
            age = step - request.begun - AHEAD
            if age < 0:
                continue
            accepted = request.prompt + 1 + age
            if accepted <= request.length:
                work.tokens[request.uid] = Accepted([accepted], accepted)
            if accepted == request.length:
                work.ended.append(Ended(request.uid, not request.broken, accepted))
                del live[request.uid]
        if step < STEPS - 50:
            begun = Live(step, step)
            live[begun.uid] = everyone[begun.uid] = begun
            work.tickets.append(Ticket(begun.uid, ("row-parts",), {"broken": begun.broken}))
            SCRIPT[begun.uid].append(Input(rows=torch.full((1, WIDTH), float(step))))
            ref = bench.store(f"in{step}", Payload({}), "script", end=False)
            work.fetches.append(Fetch(begun.uid, ref, {}))
        bench.io.submit(work)
        for request in live.values():
            if bench.io.row_log(request.uid) is not None:
                count = request.prompt if request.computed == 0 else 1
                bench.rows(request.uid, request.computed, count)
                request.computed += count
            if (kept := bench.io.decode_rows(request.uid)) is not None:
                row = kept.get(0)
                assert row is not None
                assert row.tolist() == [float(request.index)] * WIDTH
        for uid in [uid for uid in everyone if uid not in live and step % 3 == 0]:
            bench.io.removed(uid)
        bench.io.check_integrity()
        outputs.put(True)
    outputs.put(False)
    return everyone


@pytest.mark.usefixtures("frequent_switches")
def test_rows_are_appended_while_another_thread_sends_them(bench: Bench) -> None:
    """C17: hundreds of requests come, run and go; every row arrives once, in order, unharmed."""
    outputs: queue.Queue[bool] = queue.Queue()
    told: list[StageNews] = []

    def finish() -> None:
        while outputs.get():
            bench.io.finish()
            told.append(bench.io.take_news())

    thread = threading.Thread(target=finish)
    thread.start()
    everyone = drive(bench, outputs)
    thread.join()
    told.append(bench.news())
    failed = Counter(uid for news in told for uid, _ in news.failed)
    assert failed == Counter(uid for uid, request in everyone.items() if request.broken)
    assert Counter(found.uid for news in told for found in news.arrived) == Counter([*everyone])
    by_uid: dict[str, list[Ref]] = defaultdict(list)
    for news in told:
        for ref in news.refs:
            by_uid[ref.uid].append(ref)
    assert by_uid.keys() == everyone.keys() - failed.keys()
    for uid, refs in by_uid.items():
        assert [ref.seq for ref in refs] == list(range(len(refs)))
        assert [ref.end for ref in refs] == [False] * (len(refs) - 1) + [True]
        rows = [bench.take(ref).fields["rows"].tensor[:, 0] for ref in refs if ref.key is not None]
        assert torch.cat(rows).tolist() == list(range(everyone[uid].length - 1))
    for uid in everyone:
        bench.io.removed(uid)
    bench.news()
    assert len(bench.io) == bench.entries() == 0
