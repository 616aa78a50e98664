"""The loop sleeps while nothing is to be done, and only a command or a deadline wakes it.

Hosts and inbox are scripted: the inbox notes how long it was asked to wait, and a wait that nothing
would end fails the test at once.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.stage.loop import serve
from antiphon.stage.messages import Command, Inspect, Stop

FOREVER = None
DAY = 86_400.0


class Host:
    """Has `work` steps to do; a due deadline is work, and its step passes it."""

    def __init__(self, log: list[tuple[str, str]], name: str, work: int = 0) -> None:
        self.log = log
        self.name = name
        self.work = work
        self.due: float | None = None
        self.stopped = False
        self.on_step: Callable[[], None] = lambda: None

    @property
    def has_work(self) -> bool:
        return not self.stopped and (self.work > 0 or self.expired)

    @property
    def expired(self) -> bool:
        return self.due is not None and self.due <= time.monotonic()

    def next_due(self) -> float | None:
        return None if self.stopped else self.due

    def handle(self, command: Command) -> None:
        self.log.append((self.name, type(command).__name__))
        if isinstance(command, Stop):
            self.stopped = True
        elif isinstance(command, Inspect):
            self.work += command.token  # any command may bring work

    def step(self) -> None:
        if self.expired:
            self.due = None
            self.log.append((self.name, "expire"))
            return
        self.work -= 1
        self.log.append((self.name, "step"))
        self.on_step()


class Script(queue.SimpleQueue):  # type: ignore[type-arg]
    """An inbox. Each wait takes the next entry: a command, or None for the time running out."""

    def __init__(self, *waits: tuple[str, Command] | None) -> None:
        super().__init__()
        self.waits = list(waits)
        self.timeouts: list[float | None] = []

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        assert block
        self.timeouts.append(timeout)
        entry = self.waits.pop(0)
        if entry is None:
            assert timeout is not None, "the loop waits for a command that does not come"
            raise queue.Empty
        return entry


def test_an_idle_loop_waits_in_the_inbox() -> None:
    """One wait per command, without a time limit: nothing polls."""
    log: list[tuple[str, str]] = []
    inbox = Script(("a", Inspect(0)), ("a", Inspect(0)), ("a", Stop()))
    serve({"a": Host(log, "a")}, inbox)  # type: ignore[dict-item]
    assert inbox.timeouts == [FOREVER] * 3
    assert log == [("a", "Inspect"), ("a", "Inspect"), ("a", "Stop")]


def test_a_command_that_brings_work_is_followed_by_its_steps_without_waiting() -> None:
    log: list[tuple[str, str]] = []
    inbox = Script(("a", Inspect(3)), ("a", Stop()))
    serve({"a": Host(log, "a")}, inbox)  # type: ignore[dict-item]
    assert inbox.timeouts == [FOREVER] * 2
    assert log == [("a", "Inspect"), *[("a", "step")] * 3, ("a", "Stop")]


def test_all_commands_that_have_arrived_are_handled_before_the_next_step() -> None:
    log: list[tuple[str, str]] = []
    inbox = Script(("a", Stop()))
    host = Host(log, "a", work=2)
    host.on_step = lambda: [inbox.put(("a", Inspect(0))) for _ in range(2)] and None  # type: ignore[func-returns-value]
    serve({"a": host}, inbox)  # type: ignore[dict-item]
    assert log[:4] == [("a", "step"), ("a", "Inspect"), ("a", "Inspect"), ("a", "step")]


def test_hosts_of_one_thread_take_turns() -> None:
    log: list[tuple[str, str]] = []
    inbox = Script(("a", Stop()), ("b", Stop()))
    hosts = {name: Host(log, name, work=2) for name in "ab"}
    serve(hosts, inbox)  # type: ignore[arg-type]
    assert log == [*[("a", "step"), ("b", "step")] * 2, ("a", "Stop"), ("b", "Stop")]


def test_a_host_without_work_is_not_stepped() -> None:
    log: list[tuple[str, str]] = []
    inbox = Script(("a", Stop()), ("b", Stop()))
    serve({"a": Host(log, "a"), "b": Host(log, "b", work=3)}, inbox)  # type: ignore[dict-item]
    assert ("a", "step") not in log


def test_the_loop_waits_no_longer_than_the_earliest_deadline() -> None:
    log: list[tuple[str, str]] = []
    near, far = Host(log, "near"), Host(log, "far")
    near.due, far.due = time.monotonic() + DAY, time.monotonic() + 2 * DAY
    inbox = Script(None, ("near", Stop()), ("far", Stop()))
    serve({"near": near, "far": far}, inbox)  # type: ignore[dict-item]
    assert inbox.timeouts[0] == pytest.approx(DAY, abs=10)
    assert ("near", "expire") not in log  # it is not due yet, whatever woke the loop


def test_a_due_deadline_wakes_the_idle_loop() -> None:
    """C9: an engine whose only request waits still delivers its error."""
    log: list[tuple[str, str]] = []
    host = Host(log, "a")
    host.due = time.monotonic() - 1
    inbox = Script(("a", Stop()))
    serve({"a": host}, inbox)  # type: ignore[dict-item]
    assert log == [("a", "expire"), ("a", "Stop")]
    assert inbox.timeouts == [FOREVER]  # after the deadline there is nothing to wait for


def test_a_stopped_host_is_left_alone_while_others_go_on() -> None:
    log: list[tuple[str, str]] = []
    hosts = {name: Host(log, name) for name in "ab"}
    inbox = Script(("a", Stop()), ("b", Inspect(2)), ("b", Stop()))
    hosts["a"].due = time.monotonic() + DAY
    serve(hosts, inbox)  # type: ignore[arg-type]
    assert log == [("a", "Stop"), ("b", "Inspect"), ("b", "step"), ("b", "step"), ("b", "Stop")]
    assert inbox.timeouts[1:] == [FOREVER] * 2  # the deadline of a stopped host is nobody's


def test_a_command_for_a_stopped_host_disturbs_nobody() -> None:
    log: list[tuple[str, str]] = []
    hosts = {name: Host(log, name) for name in "ab"}
    inbox = Script(("a", Stop()), ("a", Inspect(1)), ("b", Stop()))
    serve(hosts, inbox)  # type: ignore[arg-type]
    assert log == [("a", "Stop"), ("b", "Stop")]


def test_a_loop_in_a_thread_ends_when_its_last_host_is_stopped() -> None:
    """With the real inbox and the real clock."""
    log: list[tuple[str, str]] = []
    inbox: queue.SimpleQueue[tuple[str, Command]] = queue.SimpleQueue()
    for command in (Inspect(1), Inspect(1), Stop()):
        inbox.put(("a", command))
    serve({"a": Host(log, "a")}, inbox)  # type: ignore[dict-item]
    assert log[-1] == ("a", "Stop")
