"""The window of active streams: bounded, in order, never idle, and no stream is lost."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from antiphon.core.window import StreamWindow


@pytest.fixture
def window() -> StreamWindow:
    """For two streams, both of which are in it; "c" and "d" wait."""
    window = StreamWindow(2)
    assert [window.enter(uid) for uid in "abcd"] == [True, True, False, False]
    return window


# --- in and out -----------------------------------------------------------------------------------


def test_a_stream_in_the_window_runs_all_its_chunks(window: StreamWindow) -> None:
    assert window.enter("a")
    assert len(window) == 4


def test_asking_again_gives_no_better_place(window: StreamWindow) -> None:
    assert not window.enter("d")
    assert not window.enter("c")
    assert window.waiting == 2
    assert window.leave("a") == "c"


def test_who_leaves_lets_in_the_one_that_has_waited_longest(window: StreamWindow) -> None:
    assert window.leave("b") == "c"
    assert window.enter("c")
    assert window.leave("a") == "d"
    assert window.waiting == 0
    assert window.leave("c") is None


def test_a_newcomer_does_not_overtake_who_waits(window: StreamWindow) -> None:
    window.leave("a")
    assert not window.enter("e")
    assert window.leave("b") == "d"
    assert window.leave("c") == "e"


def test_a_stream_that_ends_while_it_waits_leaves_no_trace(window: StreamWindow) -> None:
    """An abort or a timeout need not wait for the window."""
    assert window.leave("c") is None
    assert window.waiting == 1
    assert window.leave("a") == "d"


def test_a_stream_that_has_left_may_come_back_as_a_new_one(window: StreamWindow) -> None:
    window.leave("a")
    assert not window.enter("a")
    assert window.waiting == 2


@pytest.mark.parametrize("size", [0, 2])
def test_leaving_an_unknown_stream_lets_nobody_in(size: int) -> None:
    window = StreamWindow(size)
    window.enter("a")
    assert window.leave("unknown") is None


def test_without_a_size_nobody_waits() -> None:
    window = StreamWindow(0)
    assert all(window.enter(str(number)) for number in range(1000))
    assert window.let_in() is None
    assert (window.waiting, len(window)) == (0, 0)


# --- work conserving ------------------------------------------------------------------------------


def test_an_idle_stage_lets_the_next_one_in_though_the_window_is_full(
    window: StreamWindow,
) -> None:
    assert window.let_in() == "c"
    assert window.enter("c")
    assert window.let_in() == "d"
    assert window.let_in() is None
    window.check_integrity()


def test_who_was_let_in_beyond_the_size_counts_until_it_leaves(window: StreamWindow) -> None:
    window.let_in()
    assert window.leave("a") is None  # two are left, as many as the size
    assert window.leave("b") == "d"


# --- whole runs -----------------------------------------------------------------------------------


def test_sequential_requests_are_never_blocked() -> None:
    """C62: K=4, and 20 requests one after the other; each end gives its place back."""
    window = StreamWindow(4)
    for number in range(20):
        uid = f"r{number}"
        assert window.enter(uid)
        assert window.enter(uid)
        assert window.leave(uid) is None
    assert len(window) == 0


class Stage:
    """A stage that runs one chunk at a time, and the streams that feed it."""

    def __init__(self, size: int) -> None:
        self.window = StreamWindow(size)
        self.chunks: dict[str, int] = {}  # what each live stream has to run
        self.runnable: deque[str] = deque()  # one entry for each stream that may run a chunk
        self.ran: list[str] = []

    def arrive(self, uid: str) -> None:
        """A chunk of a stream, which is asked for its turn unless it runs or waits already."""
        self.chunks[uid] = self.chunks.get(uid, 0) + 1
        if self.chunks[uid] == 1:
            self.ask(uid)

    def ask(self, uid: str) -> None:
        if self.window.enter(uid):
            self.runnable.append(uid)

    def step(self) -> None:
        """Run a chunk. The stage is never idle while any stream has one."""
        if not self.runnable and (uid := self.window.let_in()) is not None:
            self.runnable.append(uid)
        assert bool(self.runnable) == any(self.chunks.values())
        if not self.runnable:
            return
        uid = self.runnable.popleft()
        self.ran.append(uid)
        self.chunks[uid] -= 1
        if self.chunks[uid]:
            self.ask(uid)

    def end(self, uid: str) -> None:
        """The stream is over, whatever it has left."""
        self.chunks.pop(uid, None)
        if uid in self.runnable:
            self.runnable.remove(uid)
        if (next_ := self.window.leave(uid)) is not None:
            self.runnable.append(next_)


def test_only_a_window_of_many_streams_is_served_at_a_time() -> None:
    """C77: the streams of the window get all of the stage until one of them ends."""
    stage = Stage(4)
    uids = [f"s{number}" for number in range(64)]
    for uid in uids:
        for _ in range(5):
            stage.arrive(uid)
    for round_ in range(16):
        served = uids[round_ * 4 : round_ * 4 + 4]
        for _ in range(20):
            stage.step()
        assert stage.ran[-20:] == served * 5
        for uid in served:
            stage.end(uid)
    assert len(stage.window) == 0


def test_a_stream_that_is_slow_upstream_holds_up_nobody() -> None:
    """C107: with one place, the other's chunks run while the first has none."""
    stage = Stage(1)
    stage.arrive("slow")
    stage.step()
    stage.arrive("quick")
    stage.step()
    assert stage.ran == ["slow", "quick"]


@given(
    size=st.integers(1, 4),
    events=st.lists(
        st.tuples(st.sampled_from(["arrive", "arrive", "step", "end"]), st.sampled_from("abcdefg")),
        max_size=80,
    ),
)
def test_no_stream_is_lost_and_the_stage_is_never_idle(
    size: int, events: list[tuple[str, str]]
) -> None:
    """C62, C77: whatever arrives, ends or is aborted when, all chunks that are left are run."""
    stage = Stage(size)
    for event, uid in events:
        match event:
            case "arrive":
                stage.arrive(uid)
            case "end":
                stage.end(uid)
            case _:
                stage.step()
        stage.window.check_integrity()
    left = {uid: count for uid, count in stage.chunks.items() if count}
    before = len(stage.ran)
    for _ in range(sum(left.values())):
        stage.step()
    assert {uid: stage.ran[before:].count(uid) for uid in left} == left
    for uid in list(stage.chunks):
        stage.end(uid)
    assert len(stage.window) == 0


# --- against a model ------------------------------------------------------------------------------


class WindowMachine(RuleBasedStateMachine):
    """Two lists say the same."""

    uids = st.sampled_from("abcdef")

    def __init__(self) -> None:
        super().__init__()
        self.window = StreamWindow(2)
        self.active: list[str] = []
        self.waiting: list[str] = []

    @rule(uid=uids)
    def enter(self, uid: str) -> None:
        if uid not in self.active + self.waiting:
            (self.active if len(self.active) < 2 else self.waiting).append(uid)
        assert self.window.enter(uid) == (uid in self.active)

    @rule(uid=uids)
    def leave(self, uid: str) -> None:
        let_in = None
        if uid in self.waiting:
            self.waiting.remove(uid)
        elif uid in self.active:
            self.active.remove(uid)
            if self.waiting and len(self.active) < 2:
                let_in = self.waiting.pop(0)
                self.active.append(let_in)
        assert self.window.leave(uid) == let_in

    @rule()
    def let_in(self) -> None:
        first = self.waiting.pop(0) if self.waiting else None
        self.active += [] if first is None else [first]
        assert self.window.let_in() == first

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.window.check_integrity()
        assert self.window.waiting == len(self.waiting)
        assert len(self.window) == len(self.active) + len(self.waiting)


TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
