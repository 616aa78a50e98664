"""Drives one or several stage hosts from one thread.

A process of its own serves one host; in-process pipelines serve all of theirs from one thread,
because vLLM keeps process-wide state during a step. The loop sleeps in the inbox while no engine
has work; only a command or a due deadline wakes it, and a due deadline is work: a step delivers
its error.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping

from antiphon.stage.host import StageHost
from antiphon.stage.messages import Command
from antiphon.stage.pulse import Pulse

Inbox = queue.SimpleQueue[tuple[str, Command]]


def serve(hosts: Mapping[str, StageHost], inbox: Inbox, pulse: Pulse | None = None) -> None:
    """Run until every host has been stopped; `pulse` is told of all that may take its time."""
    pulse = Pulse() if pulse is None else pulse
    while not all(host.stopped for host in hosts.values()):
        _take_commands(hosts, inbox, pulse)
        for host in hosts.values():
            if host.has_work:
                pulse.begin()
                host.step()
        pulse.rest()


def _take_commands(hosts: Mapping[str, StageHost], inbox: Inbox, pulse: Pulse) -> None:
    """Handle what has arrived; wait for a command first when there is nothing else to do."""
    idle = not any(host.has_work for host in hosts.values())
    timeout = _patience(hosts) if idle else 0.0
    try:
        if timeout is not None and timeout <= 0.0:
            name, command = inbox.get_nowait()
        else:
            name, command = inbox.get(timeout=timeout)
        while True:
            pulse.begin()
            if not hosts[name].stopped:  # what was on its way to a stage that has ended
                hosts[name].handle(command)
            name, command = inbox.get_nowait()
    except queue.Empty:
        return


def _patience(hosts: Mapping[str, StageHost]) -> float | None:
    """Seconds until the earliest deadline; None: wait for a command."""
    dues = [due for host in hosts.values() if (due := host.next_due()) is not None]
    return max(0.0, min(dues) - time.monotonic()) if dues else None
