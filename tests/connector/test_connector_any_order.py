"""Payloads of all sizes in any order: what is viewed never changes, and the books are right."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from large_payloads import MIB, files

from antiphon.connector.registry import make_connector
from antiphon.connector.runs import new_run_token
from antiphon.errors import ConnectorError

SIZES = st.sampled_from([0, 1, MIB // 2, MIB - 1, MIB, MIB + 1, 3 * MIB // 2, 2 * MIB, 3 * MIB])


class AnyOrder(RuleBasedStateMachine):
    """Two producers and a taker; `stored` and `viewed` say what must be there."""

    kind = "shm"
    budget = 6 * MIB
    bound = budget  # of what is stored and what is kept

    def __init__(self) -> None:
        super().__init__()
        self.run = new_run_token()
        self.producers = [make_connector(self.kind, self.run, self.budget) for _ in range(2)]
        self.taker = make_connector(self.kind, self.run, 1)
        self.stored: dict[str, tuple[int, int]] = {}  # by key: producer, bytes
        self.viewed: list[tuple[memoryview, bytes]] = []
        self.puts = 0

    def content(self, key: str, size: int) -> bytes:
        return (key.encode() * (size // len(key) + 1))[:size]

    @rule(producer=st.integers(0, 1), size=SIZES, cut=st.floats(0, 1))
    def put(self, producer: int, size: int, cut: float) -> None:
        key = f"{self.puts:03}"
        self.puts += 1
        data = self.content(key, size)
        at = int(size * cut)
        held = sum(size for owner, size in self.stored.values() if owner == producer)
        try:
            self.producers[producer].put(key, [data[:at], data[at:]])
        except ConnectorError:
            assert held + size > self.budget
        else:
            assert held + size <= self.budget
            self.stored[key] = (producer, size)

    @precondition(lambda self: self.stored)
    @rule(data=st.data(), keep=st.booleans())
    def take(self, data: st.DataObject, keep: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.stored)))
        content = self.content(key, self.stored.pop(key)[1])
        view = self.taker.take(key)
        assert view == content
        if keep:
            self.viewed.append((view, content))

    @precondition(lambda self: self.viewed)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.viewed.pop(data.draw(st.integers(0, len(self.viewed) - 1)))

    @precondition(lambda self: self.stored)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.stored)))
        del self.stored[key]
        assert self.taker.delete([key]) == 1

    @rule(producer=st.integers(0, 1))
    def trim(self, producer: int) -> None:
        self.producers[producer].trim()
        assert self.producers[producer].statistics().pooled_bytes == 0

    @invariant()
    def books_and_memory_agree(self) -> None:
        for index, producer in enumerate(self.producers):
            producer.check_integrity()
            statistics = producer.statistics()
            held = [size for owner, size in self.stored.values() if owner == index]
            assert (statistics.entries, statistics.bytes_held) == (len(held), sum(held))
            assert statistics.bytes_held + statistics.pooled_bytes <= self.bound
        for view, content in self.viewed:
            assert view == content

    def teardown(self) -> None:
        for connector in (*self.producers, self.taker):
            connector.close()
        assert files(self.run) == []
        for view, content in self.viewed:
            assert view == content


class AnyOrderInproc(AnyOrder):
    """Within one process lengths are rounded."""

    kind = "inproc"
    bound = AnyOrder.budget * 5 // 4


SETTINGS = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestShm, TestInproc = AnyOrder.TestCase, AnyOrderInproc.TestCase
TestShm.settings = TestInproc.settings = SETTINGS
