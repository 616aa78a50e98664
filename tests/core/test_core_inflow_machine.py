"""A request's keys over any legal sequence: each is reported used once, and never before it is."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.core.inflow import Inflow
from antiphon.core.prompt_plan import PromptPlan

PLAN = PromptPlan((1, 2, 3))


@dataclass
class Chunk:
    """One accepted chunk as the test knows it."""

    key: str | None
    answered: bool = False
    prompt: bool = False
    rows_end: int | None = None  # the rows that the request has with it, if it brought any
    reported: bool = False


class Books(RuleBasedStateMachine):
    """Chunks are accepted in order and answered in order; what a call reports is what is due."""

    def __init__(self) -> None:
        super().__init__()
        self.inflow = Inflow("codes", stream=True)
        self.chunks: list[Chunk] = []
        self.ended = False  # an end has been accepted

    def is_used(self, chunk: Chunk) -> bool:
        """Whether no later step needs anything of it."""
        raise NotImplementedError

    def check(self, used: list[str]) -> None:
        """What a call reported is what it had to report, and nothing twice."""
        due = {c.key for c in self.chunks if c.key and not c.reported and self.is_used(c)}
        assert sorted(used) == sorted(due)
        for chunk in self.chunks:
            chunk.reported |= chunk.key in due

    def next_unanswered(self) -> Chunk | None:
        return next((chunk for chunk in self.chunks if not chunk.answered), None)

    @rule(last=st.sampled_from([False] * 5 + [True]), bare=st.booleans())
    def accept(self, last: bool, bare: bool) -> None:
        if self.ended:
            return
        key = None if last and bare else f"k{len(self.chunks)}"
        self.chunks.append(Chunk(key))
        self.ended = last
        if key is not None:
            self.inflow.accepted([key])

    def answer(self, chunk: Chunk, rows: int, *, prompt: bool) -> None:
        chunk.answered, chunk.prompt = True, prompt
        last = self.ended and chunk is self.chunks[-1]
        before = self.inflow.rows
        if rows:
            chunk.rows_end = before + rows
        self.check(self.inflow.answered(chunk.key, rows, last=last, kept=prompt))
        assert self.inflow.rows == before + rows
        assert self.inflow.ended == last

    def teardown(self) -> None:
        """The request may be over at any point; each chunk has been reported once then."""
        used = self.inflow.close()
        assert sorted(used) == sorted(c.key for c in self.chunks if c.key and not c.reported)
        assert self.inflow.close() == []


class ArBooks(Books):
    """A prompt from one or several chunks, then rows, used one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.planned = False
        self.scheduled = False
        self.needed = 0

    def is_used(self, chunk: Chunk) -> bool:
        if not chunk.answered:
            return False
        if chunk.rows_end is not None:
            return chunk.rows_end < self.needed
        return self.scheduled or not chunk.prompt

    @precondition(lambda self: self.next_unanswered() is not None)
    @rule(rows=st.sampled_from([0, 0, 1, 2, 5]), prompt=st.booleans())
    def take_in(self, rows: int, prompt: bool) -> None:
        chunk = self.next_unanswered()
        assert chunk is not None
        if chunk.key is None:  # nothing but the end
            self.answer(chunk, 0, prompt=False)
            return
        prompt = prompt and not self.planned
        self.answer(chunk, rows, prompt=prompt)
        if prompt:
            self.planned = self.inflow.planned = True
            self.inflow.running = chunk.key

    @precondition(lambda self: self.planned)
    @rule()
    def schedule(self) -> None:
        self.scheduled = True
        self.check(self.inflow.scheduled())

    @precondition(lambda self: self.scheduled)
    @rule()
    def need(self) -> None:
        """The next step, or the same again if the request starves."""
        self.needed += not self.inflow.starves
        self.check(self.inflow.needs(self.needed))

    @invariant()
    def starves_only_for_what_may_come(self) -> None:
        rows = max((chunk.rows_end or 0 for chunk in self.chunks), default=0)
        over = self.ended and self.next_unanswered() is None
        assert self.inflow.starves == (self.needed > rows and not over)


class GenerationBooks(Books):
    """One plan per chunk, or none; they run one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.queued: list[Chunk] = []
        self.running: Chunk | None = None
        self.run: list[Chunk] = []

    def is_used(self, chunk: Chunk) -> bool:
        return chunk.answered and (not chunk.prompt or chunk in self.run)

    @precondition(lambda self: self.next_unanswered() is not None)
    @rule(prompt=st.sampled_from([True, True, False]))
    def take_in(self, prompt: bool) -> None:
        chunk = self.next_unanswered()
        assert chunk is not None
        self.answer(chunk, 0, prompt=prompt)
        if prompt:
            self.inflow.plans.append((PLAN, chunk.key))
            self.queued.append(chunk)

    @precondition(lambda self: self.running is None)
    @rule()
    def start(self) -> None:
        assert (self.inflow.next_plan() is None) == (not self.queued)
        if self.queued:
            self.running = self.queued.pop(0)

    @precondition(lambda self: self.running is not None)
    @rule()
    def finish(self) -> None:
        assert self.running is not None
        self.run.append(self.running)
        self.running = None
        self.check(self.inflow.ran())


TestArBooks = ArBooks.TestCase
TestArBooks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestGenerationBooks = GenerationBooks.TestCase
TestGenerationBooks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
