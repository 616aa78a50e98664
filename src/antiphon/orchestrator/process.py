"""A stage in a process of its own.

The two ends hold a socket pair; its end of file tells each side that the other is gone. Threads
keep the event loop free: one writes, so that a stage which does not read blocks nobody, one reads,
and one takes what the process logs.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection

import msgspec

from antiphon.env import with_variables
from antiphon.errors import AntiphonError, StageDiedError, StageStartError, from_wire
from antiphon.orchestrator.clients import OnEvent, OnGone, WatchedClient
from antiphon.orchestrator.stage_log import StageLog
from antiphon.stage.messages import Command, Event, Failed, Ready, Stop, Stopped
from antiphon.stage.spec import StageSpec
from antiphon.stage.wire import Channel


class ProcessStage(WatchedClient):
    """Starts the process in its constructor; `Ready` or `Failed` follows as an event.

    `module` is what it runs: what is told there is that of `antiphon.stage.process`.
    """

    def __init__(
        self,
        spec: StageSpec,
        on_event: OnEvent,
        on_gone: OnGone,
        *,
        module: str = "antiphon.stage.process",
    ) -> None:
        self._name = spec.name
        self._on_event = on_event
        self._on_gone = on_gone
        self._ready = False
        self._stopping = False
        self._killed: AntiphonError | None = None
        self._ending = threading.Lock()  # `stop` may be called by several at once
        encoded = msgspec.msgpack.encode(spec)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  our own module
                [sys.executable, "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=with_variables(spec.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a terminal's Ctrl-C is ours to handle
            )
        assert self._process.stdout is not None  # noqa: S101  asked for above
        self._log = StageLog(spec.name, self._process.stdout, echo=spec.log_level != "error")
        connection: Connection[object, object] = Connection(ours.detach())
        with contextlib.suppress(OSError):  # it has ended already: the reader tells why
            connection.send_bytes(encoded)
        self._channel: Channel[Event] = Channel(connection, Event)
        self._outbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=run, daemon=True, name=f"{spec.name}-{run.__name__}")
            for run in (self._write, self._read)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self, why: AntiphonError) -> None:
        self._killed = why
        self._process.kill()

    def send(self, command: Command) -> None:
        self._outbox.put(command)

    def stop(self, timeout_s: float) -> None:
        self._stopping = True
        self._outbox.put(Stop())
        if not self._ready:  # it would hear of it when it has loaded, and holds nothing yet
            self._process.terminate()
        with self._ending:
            for end in (self._process.terminate, self._process.kill):
                try:
                    self._process.wait(timeout_s)
                    break
                except subprocess.TimeoutExpired:
                    end()
            self._process.wait()
            self._outbox.put(None)
            for thread in self._threads:
                thread.join()
            self._channel.close()
            self._log.close()

    def _write(self) -> None:
        while (command := self._outbox.get()) is not None:
            try:
                self._channel.send(command)
            except OSError:
                return  # the reader tells why

    def _read(self) -> None:
        failure: AntiphonError | None = None
        try:
            while True:
                event, frames = self._channel.receive()
                if isinstance(event, Failed):
                    failure = from_wire(event.error)
                    continue
                if isinstance(event, Stopped):
                    continue
                self._ready |= isinstance(event, Ready)
                self._on_event(self._name, event, frames)
        except (EOFError, OSError):
            pass
        except msgspec.MsgspecError as error:
            failure = StageDiedError(f"stage '{self._name}' sent what cannot be read: {error}")
            self._process.kill()
        status = self._process.wait()
        if not self._stopping:
            if self._ready and failure is not None and not isinstance(failure, StageDiedError):
                failure = StageDiedError(f"stage '{self._name}' failed: {failure}")
            self._on_gone(self._name, self._killed or failure or self._obituary(status))

    def _obituary(self, status: int) -> StageDiedError | StageStartError:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        if self._ready:
            return StageDiedError(f"the process of stage '{self._name}' {how}")
        return StageStartError(f"stage '{self._name}' {how} while it started{self._log_tail()}")

    def _log_tail(self) -> str:
        last = self._log.last_line()
        return f": {last}" if last else ""
