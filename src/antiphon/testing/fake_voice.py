"""What a test has a stage without an engine say, and what it reads there."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import MutableSet, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from antiphon.errors import AntiphonError, ErrorInfo
from antiphon.orchestrator.clients import OnEvent, WatchedClient
from antiphon.payload.ref import Ref
from antiphon.stage.messages import (
    Abort,
    Aborted,
    Command,
    Event,
    Interrupt,
    Interrupted,
    Output,
    Step,
    Submit,
    Tensor,
)
from antiphon.testing.fake_session import FakeSession
from antiphon.testing.fake_store import FakeStore
from antiphon.testing.fake_wire import FakeWire

C = TypeVar("C")


class FakeVoice(WatchedClient):
    """The requests of one stage, and how their outputs are reported."""

    def __init__(self, name: str, on_event: OnEvent, keys: MutableSet[str]) -> None:
        self.name = name
        self.wire = FakeWire(name, on_event, self._take)
        self.commands: list[Command] = []  # that it has taken, oldest first
        self.live: dict[str, Submit] = {}  # requests that the stage holds
        self.waiting: set[str] = set()  # those of them for which nothing has arrived
        self.sessions: dict[str, FakeSession] = {}  # those of them that are sessions
        self.keys = keys
        self.store = FakeStore(name, keys)
        self.pending_aborts: list[Abort] = []
        self.pending_interrupts: list[Interrupt] = []

    # --- what a test reads --------------------------------------------------------------------

    def sent(self, kind: type[C]) -> list[C]:
        """The commands of this kind, oldest first."""
        return [command for command in self.commands if isinstance(command, kind)]

    def epoch(self, uid: str) -> int:
        """The epoch of a request, of a session that of its segment; 0 if it is not there."""
        if (session := self.sessions.get(uid)) is not None:
            return session.epoch
        submit = self.live.get(uid)
        return 0 if submit is None else submit.epoch

    def check_integrity(self) -> None:
        """Raise AssertionError if something is kept for a request that the stage has not."""
        if not self.waiting | self.sessions.keys() <= self.live.keys():
            raise AssertionError(f"stage '{self.name}' remembers a request that is over")
        self.store.check_integrity(self.live)

    # --- what a test does ---------------------------------------------------------------------

    def emit(self, event: Event, frames: Sequence[bytes | memoryview] = ()) -> None:
        """Report any event."""
        self.wire.say(event, frames)

    def tokens(
        self, uid: str, *token_ids: int, finish: str | None = None, epoch: int | None = None
    ) -> None:
        """A step sampled these for `uid`; a session's epoch is its own unless given."""
        self._say(Output(uid, list(token_ids), finish=finish), epoch)

    def audio(self, uid: str, samples: Sequence[float], finish: str | None = "stop") -> None:
        """A step brought this waveform for `uid`."""
        self._tensor(uid, np.asarray(samples, dtype=np.float32), finish)

    def image(self, uid: str, pixels: npt.NDArray[Any], finish: str | None = "stop") -> None:
        """A step brought this picture [height, width, 3] for `uid`."""
        self._tensor(uid, pixels, finish)

    def finish(self, uid: str, reason: str = "stop") -> None:
        """`uid` ended by itself."""
        self.tokens(uid, finish=reason)

    def end_segment(self, uid: str, reason: str = "stop") -> None:
        """A segment of the session `uid` ended; the update that has waited longest begins."""
        session = self.sessions[uid]
        epoch, begins = session.epoch, session.rest()
        self._say(Output(uid, segment_finish=reason), epoch)
        if begins:
            self._run_soon(uid)

    def fail(self, uid: str, error: AntiphonError | ErrorInfo) -> None:
        """`uid` ended with an error."""
        info = error.to_wire() if isinstance(error, AntiphonError) else error
        self._say(Output(uid, finish="error", error=info))

    def ref(
        self,
        uid: str,
        edge: str,
        *,
        end: bool = True,
        empty: bool = False,
        seq: int | None = None,
        epoch: int | None = None,
        token_ids: tuple[int, ...] = (),
    ) -> Ref:
        """A payload of `uid` is stored; seq and epoch count by themselves unless given.

        `token_ids` come with a KV cache; with `empty` it is lost, and they are all that there is.
        """
        epoch = self.epoch(uid) if epoch is None else epoch
        # What a stage that is gone would store is not there.
        ref = self.store.put(uid, edge, epoch, seq, end=end, empty=empty or self.wire.gone)
        ref = msgspec.structs.replace(ref, token_ids=token_ids)
        self.store.take(uid)
        self.emit(Step([], [ref], self.store.take_used()))
        return ref

    def use(self, uid: str) -> None:
        """What has been delivered for `uid` is used up, and nothing is said of it otherwise."""
        self.store.take(uid)
        self.report()

    def report(self) -> None:
        """Say what has been used up, if that has not been said."""
        if used := self.store.take_used():
            self.emit(Step([], [], used))

    def acknowledge(self) -> None:
        """Answer the oldest abort: its requests are gone. Nothing if there is none.

        Interruptions are answered first: a real stage does it when it hears of them.
        """
        while self.pending_interrupts:
            self.interrupt()
        if self.pending_aborts:
            abort = self.pending_aborts.pop(0)
            for uid in abort.uids:
                self._forget(uid)
            self.report()
            self.emit(Aborted(abort.uids, abort.token))

    def interrupt(self) -> None:
        """Answer the oldest interruption: the segment has ended. Nothing if there is none."""
        if self.pending_interrupts:
            command = self.pending_interrupts.pop(0)
            session = self.sessions.get(command.uid)
            if session is not None and not session.resting:
                self.end_segment(command.uid, "interrupt")
            self.emit(Interrupted(command.uid, command.token))

    # --- parts --------------------------------------------------------------------------------

    @abstractmethod
    def _take(self, command: Command) -> None:
        """A command has arrived."""

    @abstractmethod
    def _run_soon(self, uid: str) -> None:
        """All that a request needs to go on is there."""

    def _say(self, output: Output, epoch: int | None = None, frames: Sequence[bytes] = ()) -> None:
        """Report an output, and with it that the input of its request is used up."""
        uid = output.uid
        if epoch is None:
            # As in a real stage: a request that has ended is in no epoch any more.
            epoch = self.epoch(uid) if output.finish is None else 0
        self.store.take(uid)
        if output.finish is not None:
            self._forget(uid)
        said = msgspec.structs.replace(output, epoch=epoch)
        self.emit(Step([said], [], self.store.take_used()), frames)

    def _tensor(self, uid: str, array: npt.NDArray[Any], finish: str | None) -> None:
        tensor = Tensor(str(array.dtype), array.shape, 0)
        self._say(Output(uid, tensor=tensor, finish=finish), frames=[array.tobytes()])

    def _forget(self, uid: str) -> None:
        self.live.pop(uid, None)
        self.waiting.discard(uid)
        self.sessions.pop(uid, None)
        self.store.forget(uid)
