"""A stage without an engine: implements the client interface, and does what a test tells it to.

Two ways to use it. *By hand*: the test looks at `commands` and emits outputs, refs,
acknowledgements and the stage's death, in whatever order it wants to see handled. *Automatic* (an
`Answer` is given): the stage answers each request by itself, so that routing can be tried without
vLLM.

It raises AssertionError for what a router must never do: a uid that is given twice, a payload that
is not stored, a chunk of another epoch or behind the end, a chunk that is returned twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from antiphon.core.gate import Gate
from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import AntiphonError, ErrorInfo, InvalidRequestError, StageDiedError
from antiphon.orchestrator.clients import OnEvent, OnGone, StageClient
from antiphon.payload.ref import Ref
from antiphon.stage.messages import (
    Abort,
    Aborted,
    Acknowledged,
    Command,
    Deliver,
    Discard,
    Event,
    Inspect,
    Inspection,
    Interrupt,
    Interrupted,
    Measure,
    Measured,
    Output,
    Ping,
    Pong,
    Sleep,
    Step,
    Stop,
    Stopped,
    Submit,
    Tensor,
    Update,
    Used,
    Wake,
)
from antiphon.testing.fake_session import FakeSession
from antiphon.testing.fake_store import FakeStore

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Answer:
    """What an automatic stage does with a request whose input is there, to its end.

    It gives `token_ids` one by one, then `samples` of audio, then a black `picture` of this height
    and width, then on each edge as many payloads as `parts` says, and finishes; of a session, each
    segment.
    """

    token_ids: tuple[int, ...] = ()
    samples: tuple[float, ...] = ()  # -1 to 1
    picture: tuple[int, int] | None = None
    parts: int = 1  # payloads per outgoing edge; 0: an explicit empty end


class FakeStage(StageClient):
    """One stage; callbacks run on the thread that calls its methods.

    `keys` are the payloads that the run's connector holds, shared by the stages of a pipeline: a
    ref puts one in, the first thing that the consumer says takes it and reports it as used, a
    discard removes it. Companions share a payload, and each reports it. An automatic stage answers
    from the running event loop, never from within `send`.
    """

    def __init__(
        self,
        name: str,
        on_event: OnEvent,
        on_gone: OnGone,
        *,
        keys: set[str] | None = None,
        answer: Answer | None = None,
    ) -> None:
        self.name = name
        self.commands: list[Command] = []
        self.live: dict[str, Submit] = {}  # requests that the stage holds
        self.waiting: set[str] = set()  # those of them for which nothing has arrived
        self.sessions: dict[str, FakeSession] = {}  # those of them that are sessions
        self.keys = set() if keys is None else keys
        self.store = FakeStore(name, self.keys)
        self.pending_aborts: list[Abort] = []
        self.pending_interrupts: list[Interrupt] = []
        self.on_command: Callable[[Command], object] = lambda command: None  # told of each one
        self.bytes_freed = 0  # what sleep gives back
        self.gone = False
        self.frozen = False  # it takes commands in, and neither does nor says anything
        self._on_event = on_event
        self._on_gone = on_gone
        self._answer = answer

    # --- the client interface -----------------------------------------------------------------

    @property
    def watched(self) -> bool:
        return True

    def kill(self, why: AntiphonError) -> None:
        self.die(why)

    def send(self, command: Command) -> None:
        if self.gone or self.frozen:
            return
        self.commands.append(command)
        match command:
            case Submit():
                self._submit(command)
            case Update():
                self._update(command)
            case Deliver():
                for uid, ref in command.items:
                    self._deliver(uid, ref)
            case Used() | Discard():
                self.store.returned(command)
            case Abort():
                self.pending_aborts.append(command)
                self._by_itself(self.acknowledge)
            case Interrupt():
                self.pending_interrupts.append(command)
                self._by_itself(self.interrupt)
            case Ping():
                self._soon(self.emit, Pong(0.0))
            case Stop():
                self.stop(0)
            case question:
                self._answer_question(question)
        self.on_command(command)

    def stop(self, timeout_s: float) -> None:
        if not self.gone:
            self.gone = True
            self._on_event(self.name, Stopped(), ())

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
        if not (self.gone or self.frozen):
            self._on_event(self.name, event, frames)

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
        ref = self.store.put(uid, edge, epoch, seq, end=end, empty=empty or self.gone)
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

    def die(self, why: AntiphonError | None = None) -> None:
        """The stage's process ends; nothing comes from it afterwards."""
        if not self.gone:
            self.gone = True
            self.live.clear()
            self.waiting.clear()
            self.sessions.clear()
            reason = f"the process of stage '{self.name}' was killed by signal 9"
            self._on_gone(self.name, why or StageDiedError(reason))

    # --- parts --------------------------------------------------------------------------------

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

    def _submit(self, submit: Submit) -> None:
        if submit.uid in self.live:
            raise AssertionError(f"stage '{self.name}' was given {submit.uid} twice")
        self.live[submit.uid] = submit
        if submit.session:
            self.sessions[submit.uid] = FakeSession(submit.epoch)
        if submit.waits_for is not None:
            self.waiting.add(submit.uid)
        else:
            self._run_soon(submit.uid)

    def _update(self, update: Update) -> None:
        """An update that cannot be is the end of its session; by hand the test says so."""
        session = self.sessions.get(update.uid)
        if session is None:
            why = InvalidRequestError(f"there is no session {update.uid}; it has ended")
            self._by_itself(self.fail, update.uid, why)
        elif session.offer(update):
            self._run_soon(update.uid)
        elif update.kind is UpdateKind.REPLACE:
            self._by_itself(self.end_segment, update.uid, "interrupt")

    def _deliver(self, uid: str, ref: Ref) -> None:
        submit = self.live.get(uid)
        self.store.delivered(uid, ref, None if submit is None else submit.epoch)
        if submit is None:
            self._by_itself(self.report)
            return
        self.waiting.discard(uid)
        if self.store.complete(uid):
            self._run_soon(uid)

    def _run_soon(self, uid: str) -> None:
        self._by_itself(self._run, uid, self.epoch(uid))

    def _run(self, uid: str, epoch: int) -> None:
        """Automatic mode: everything that a request brings."""
        answer, submit, session = self._answer, self.live.get(uid), self.sessions.get(uid)
        if answer is None or submit is None or self.epoch(uid) != epoch:
            return  # aborted meanwhile
        if session is not None and session.resting:
            return  # interrupted meanwhile
        if submit.waits_for is not None and not self.store.holds(uid):
            answer = Answer(parts=0)  # its input was empty
        for token in answer.token_ids:
            self.tokens(uid, token)
        if answer.samples:
            self.audio(uid, answer.samples, finish=None)
        if answer.picture is not None:
            self.image(uid, np.zeros((*answer.picture, 3), np.uint8), finish=None)
        for edge in submit.edges:
            for index in range(max(1, answer.parts)):
                self.ref(uid, edge, end=index >= answer.parts - 1, empty=answer.parts == 0)
        if session is None:
            self.finish(uid)
        else:
            self.end_segment(uid)

    def _answer_question(self, question: Sleep | Wake | Inspect | Measure) -> None:
        match question:
            case Sleep() | Wake():
                freed = self.bytes_freed if isinstance(question, Sleep) else 0
                self._soon(self.emit, Acknowledged(question.token, freed))
            case Inspect():
                self._soon(self.emit, self._inspection(question.token))
            case Measure():
                gate = Gate(time.monotonic).statistics()
                self._by_itself(self.emit, Measured(question.token, 0, gate))

    def _inspection(self, token: int) -> Inspection:
        return Inspection(
            token=token,
            requests=len(self.live),
            gated=len(self.waiting),
            free_blocks=0,
            total_blocks=1,
            worker_requests=len(self.live),
            connector_entries=len(self.keys),
            steps=0,
        )

    def _by_itself(self, call: Callable[..., None], *args: object) -> None:
        """What an automatic stage does without being told."""
        if self._answer is not None:
            self._soon(call, *args)

    def _soon(self, call: Callable[..., None], *args: object) -> None:
        asyncio.get_running_loop().call_soon(call, *args)
