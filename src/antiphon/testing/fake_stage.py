"""A stage without an engine: implements the client interface, and does what a test tells it to.

Two ways to use it. *By hand*: the test looks at `commands` and emits outputs, refs,
acknowledgements and the stage's death, in whatever order it wants to see handled. *Automatic* (an
`Answer` is given): the stage answers each request by itself, so that routing can be tried without
vLLM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from antiphon.errors import AntiphonError, ErrorInfo, StageDiedError
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
    Output,
    Sleep,
    Step,
    Stop,
    Stopped,
    Submit,
    Tensor,
    Wake,
)

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Answer:
    """What an automatic stage does with a request whose input is there.

    It gives `token_ids` one by one, then `samples` of audio, then on each edge as many payloads as
    `parts` says, and finishes.
    """

    token_ids: tuple[int, ...] = ()
    samples: tuple[float, ...] = ()  # -1 to 1
    parts: int = 1  # payloads per outgoing edge; 0: an explicit empty end


class FakeStage(StageClient):
    """One stage; callbacks run on the thread that calls its methods.

    `keys` are the payloads that the run's connector holds, shared by the stages of a pipeline: a
    ref puts one in, the first thing that the consumer says takes it, a discard removes it. An
    automatic stage answers from the running event loop, never from within `send`.
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
        self.waiting: set[str] = set()  # those of them whose input has not arrived
        self.keys = set() if keys is None else keys
        self.pending_aborts: list[Abort] = []
        self.on_command: Callable[[Command], object] = lambda command: None  # told of each one
        self.gone = False
        self._on_event = on_event
        self._on_gone = on_gone
        self._answer = answer
        self._seqs: dict[tuple[str, str], int] = {}
        self._inputs: dict[str, str] = {}  # keys that were delivered and have not been taken

    # --- the client interface -----------------------------------------------------------------

    def send(self, command: Command) -> None:
        if self.gone:
            return
        self.commands.append(command)
        match command:
            case Submit():
                self._submit(command)
            case Deliver():
                for uid, ref in command.items:
                    self._deliver(uid, ref)
            case Discard():
                self.keys.difference_update(command.keys)
            case Abort():
                self.pending_aborts.append(command)
                if self._answer is not None:
                    self._soon(self.acknowledge)
            case Sleep() | Wake():
                self._soon(self.emit, Acknowledged(command.token))
            case Inspect():
                self._soon(self.emit, self._inspection(command.token))
            case Stop():
                self.stop(0)
        self.on_command(command)

    def stop(self, timeout_s: float) -> None:
        if not self.gone:
            self.gone = True
            self._on_event(self.name, Stopped(), ())

    # --- what a test reads --------------------------------------------------------------------

    def sent(self, kind: type[C]) -> list[C]:
        """The commands of this kind, oldest first."""
        return [command for command in self.commands if isinstance(command, kind)]

    # --- what a test does ---------------------------------------------------------------------

    def emit(self, event: Event, frames: Sequence[bytes | memoryview] = ()) -> None:
        """Report any event."""
        if not self.gone:
            self._on_event(self.name, event, frames)

    def tokens(self, uid: str, *token_ids: int, finish: str | None = None) -> None:
        """A step sampled these for `uid`."""
        self._finished(uid, finish)
        self.emit(Step([Output(uid, list(token_ids), finish=finish)], []))

    def audio(self, uid: str, samples: Sequence[float], finish: str | None = "stop") -> None:
        """A step brought this waveform for `uid`."""
        array = np.asarray(samples, dtype=np.float32)
        self._finished(uid, finish)
        output = Output(uid, tensor=Tensor("float32", array.shape, 0), finish=finish)
        self.emit(Step([output], []), [array.tobytes()])

    def finish(self, uid: str, reason: str = "stop") -> None:
        """`uid` ended by itself."""
        self.tokens(uid, finish=reason)

    def fail(self, uid: str, error: AntiphonError | ErrorInfo) -> None:
        """`uid` ended with an error."""
        info = error.to_wire() if isinstance(error, AntiphonError) else error
        self._finished(uid, "error")
        self.emit(Step([Output(uid, finish="error", error=info)], []))

    def ref(
        self, uid: str, edge: str, *, end: bool = True, empty: bool = False, seq: int | None = None
    ) -> Ref:
        """A payload of `uid` is stored; seq counts by itself unless given. Returns the ref."""
        if seq is None:
            seq = self._seqs.get((uid, edge), 0)
        self._seqs[uid, edge] = seq + 1
        key = None if empty else f"{self.name}/{uid}/{edge}/{seq}"
        ref = Ref(uid, edge, seq, end=end, key=key)
        if key is not None and not self.gone:
            self.keys.add(key)
        self.emit(Step([], [ref]))
        return ref

    def acknowledge(self) -> None:
        """Answer the oldest abort: its requests are gone. Nothing if there is none."""
        if self.pending_aborts:
            abort = self.pending_aborts.pop(0)
            for uid in abort.uids:
                self._finished(uid, "abort")
            self.emit(Aborted(abort.uids, abort.token))

    def die(self, why: AntiphonError | None = None) -> None:
        """The stage's process ends; nothing comes from it afterwards."""
        if not self.gone:
            self.gone = True
            self.live.clear()
            self.waiting.clear()
            reason = f"the process of stage '{self.name}' was killed by signal 9"
            self._on_gone(self.name, why or StageDiedError(reason))

    # --- parts --------------------------------------------------------------------------------

    def _submit(self, submit: Submit) -> None:
        if submit.uid in self.live:
            raise AssertionError(f"stage '{self.name}' was given {submit.uid} twice")
        self.live[submit.uid] = submit
        if submit.waits_for is not None:
            self.waiting.add(submit.uid)
        elif self._answer is not None:
            self._soon(self._run, submit.uid, self._answer)

    def _deliver(self, uid: str, ref: Ref) -> None:
        if ref.key is not None:
            if ref.key not in self.keys:
                raise AssertionError(f"payload {ref.key} is not stored")
            if uid in self.waiting:
                self._inputs[uid] = ref.key
            else:
                self.keys.remove(ref.key)  # too late: the stage discards it
        if uid not in self.waiting:
            return
        self.waiting.remove(uid)
        if self._answer is not None:
            answer = Answer(parts=0) if ref.empty else self._answer
            self._soon(self._run, uid, answer)

    def _run(self, uid: str, answer: Answer) -> None:
        """Automatic mode: everything that a request brings."""
        if uid not in self.live:
            return  # aborted meanwhile
        for token in answer.token_ids:
            self.tokens(uid, token)
        if answer.samples:
            self.audio(uid, answer.samples, finish=None)
        for edge in self.live[uid].edges:
            for index in range(max(1, answer.parts)):
                self.ref(uid, edge, end=index >= answer.parts - 1, empty=answer.parts == 0)
        self.finish(uid)

    def _finished(self, uid: str, finish: str | None) -> None:
        if (key := self._inputs.pop(uid, None)) is not None:
            self.keys.discard(key)
        if finish is not None:
            self.live.pop(uid, None)
            self.waiting.discard(uid)

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

    def _soon(self, call: Callable[..., None], *args: object) -> None:
        asyncio.get_running_loop().call_soon(call, *args)
