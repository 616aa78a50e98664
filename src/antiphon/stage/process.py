"""Main module of a stage's own process: `python -m antiphon.stage.process FD`.

The orchestrator passes one end of a socket pair. When that end closes, for whatever reason, the
orchestrator is gone and so is this process: no stage outlives its pipeline. On Linux the kernel
sees to it too, for a process that is stopped and hears nothing.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NoReturn

import msgspec

from antiphon.core.parent import die_with_parent
from antiphon.errors import AntiphonError, StageDiedError, StageStartError
from antiphon.stage.messages import Command, Event, Failed, Ping, Pong, Starting
from antiphon.stage.pulse import Pulse
from antiphon.stage.spec import StageSpec
from antiphon.stage.wire import Channel

_MOST_REASON = 600  # characters


def main() -> None:
    """Serve one stage until it is stopped or the orchestrator is gone."""
    # A terminal's Ctrl-C goes to the orchestrator, which stops its stages in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    connection: Connection[object, object] = Connection(int(sys.argv[1]))
    spec = msgspec.msgpack.decode(connection.recv_bytes(), type=StageSpec)
    channel: Channel[Command] = Channel(connection, Command)
    try:
        _serve(spec, channel)
    except AntiphonError as error:
        channel.send(Failed(error.to_wire()))
        if error.__cause__ is not None:
            traceback.print_exc()
        _end(1)  # at once: whatever is to be shut down in order may hang


def _reason(error: Exception) -> str:
    """What was raised, in one line: upstream's own can be a page."""
    reason = " ".join(str(error).split())
    if len(reason) > _MOST_REASON:
        reason = f"{reason[:_MOST_REASON]}…"
    return f"{type(error).__name__}: {reason}"


def _serve(spec: StageSpec, channel: Channel[Command]) -> None:
    inbox: queue.SimpleQueue[tuple[str, Command]] = queue.SimpleQueue()
    pulse = Pulse()

    def listen() -> None:
        try:
            while True:
                command, _ = channel.receive()
                if isinstance(command, Ping):
                    channel.send(Pong(pulse.busy_s))
                else:
                    inbox.put((spec.name, command))
        except (EOFError, OSError):
            os._exit(0)  # the orchestrator is gone; its run's leftovers are reclaimed by run token
        except Exception:  # noqa: BLE001  a stage that hears nothing must not live on
            traceback.print_exc()
            os._exit(1)

    # Nothing may hold up the news that the orchestrator is gone: listen before anything is loaded.
    threading.Thread(target=listen, daemon=True, name="listen").start()
    channel.send(Starting("importing vLLM"))

    def send(event: Event, frames: Sequence[memoryview]) -> None:
        channel.send(event, frames)

    from antiphon.stage.host import StageHost
    from antiphon.stage.loop import serve

    what = f"stage '{spec.name}' could not start from {spec.model}"
    kind: type[AntiphonError] = StageStartError
    try:
        host = StageHost(spec, send)
        what, kind = f"stage '{spec.name}' failed", StageDiedError
        serve({spec.name: host}, inbox, pulse)
    except AntiphonError:
        raise
    except Exception as error:
        raise kind(f"{what}: {_reason(error)}") from error


def _end(status: int) -> NoReturn:
    """Python's own end would take seconds more with torch loaded, and somebody waits for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
    _end(0)
