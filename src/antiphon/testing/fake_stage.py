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
from collections.abc import Callable, MutableSet

from antiphon.core.gate import Gate
from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import AntiphonError, InvalidRequestError, StageDiedError
from antiphon.orchestrator.clients import OnEvent, OnGone
from antiphon.payload.ref import Ref
from antiphon.stage.messages import (
    Abort,
    Command,
    Deliver,
    Discard,
    Inspect,
    Inspection,
    Interrupt,
    Interrupted,
    Measure,
    Measured,
    Ping,
    Pong,
    Sleep,
    Stop,
    Stopped,
    Submit,
    Update,
    Used,
    Wake,
)
from antiphon.testing.fake_answer import Answer, bring
from antiphon.testing.fake_session import FakeSession
from antiphon.testing.fake_slumber import FakeSlumber
from antiphon.testing.fake_voice import FakeVoice

__all__ = ["Answer", "FakeStage"]


class FakeStage(FakeVoice):
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
        keys: MutableSet[str] | None = None,
        answer: Answer | None = None,
    ) -> None:
        super().__init__(name, on_event, set() if keys is None else keys)
        self.on_command: Callable[[Command], object] = lambda command: None  # told of each one
        self.slumber = FakeSlumber(self.emit, self._take_awake)
        self.light_sleeper = True  # nothing that runs keeps it from falling asleep
        self.bytes_freed = 0  # what sleep gives back
        self._on_gone = on_gone
        self._answer = answer

    # --- the client interface -----------------------------------------------------------------

    def kill(self, why: AntiphonError) -> None:
        self.die(why)

    def send(self, command: Command) -> None:
        self.wire.hear(command)

    def stop(self, timeout_s: float) -> None:
        if not self.gone:
            self.emit(Stopped())
            self.wire.cut()

    @property
    def gone(self) -> bool:
        return self.wire.gone

    @property
    def frozen(self) -> bool:
        """Whether its process is stopped: it neither does nor says anything until it goes on."""
        return self.wire.frozen

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        if frozen:
            self.wire.freeze()
        else:
            self.wire.thaw()

    # --- its ends ---------------------------------------------------------------------------

    def fall_asleep(self) -> None:
        """What ran when it was told to sleep has ended. Nothing if it was not."""
        self.slumber.fall_asleep(self.bytes_freed)

    def die(self, why: AntiphonError | None = None) -> None:
        """The stage's process ends; nothing comes from it afterwards."""
        if not self.gone:
            self.wire.cut()
            self.slumber.end()
            self.store.end()
            self.live.clear()
            self.waiting.clear()
            self.sessions.clear()
            reason = f"the process of stage '{self.name}' was killed by signal 9"
            self._on_gone(self.name, why or StageDiedError(reason))

    # --- parts --------------------------------------------------------------------------------

    def _take(self, command: Command) -> None:
        self.commands.append(command)
        match command:
            case Submit() | Update() | Deliver() | Interrupt():
                if not self.slumber.holds_back(command):
                    self._take_awake(command)
            case Used() | Discard():
                self.store.returned(command)
            case Abort():
                for held in self.slumber.drop(command.uids):
                    self.emit(Interrupted(held.uid, held.token))
                self.pending_aborts.append(command)
                self._by_itself(self.acknowledge)
            case Ping():
                self._soon(self.emit, Pong(0.0))
            case Stop():
                self.stop(0)
            case question:
                self._answer_question(question)
        self.on_command(command)

    def _take_awake(self, command: Command) -> None:
        """What waits while the stage sleeps."""
        match command:
            case Submit():
                self._submit(command)
            case Update():
                self._update(command)
            case Deliver():
                for uid, ref in command.items:
                    self._deliver(uid, ref)
            case Interrupt():
                self.pending_interrupts.append(command)
                self._by_itself(self.interrupt)

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
        bring(self, uid, answer)

    def _answer_question(self, question: Sleep | Wake | Inspect | Measure) -> None:
        match question:
            case Sleep():
                self.slumber.lie_down(question)
                if self.light_sleeper:
                    self._soon(self.fall_asleep)
            case Wake():
                self._soon(self.slumber.wake, question)
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
