"""The host of a stage: takes commands, steps the engine, reports what each step brought.

Not a loop: `serve` (loop.py) drives one or several hosts from one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vllm.v1.engine import EngineCoreOutput

from antiphon.errors import (
    AntiphonError,
    StageDiedError,
    StageStepError,
)
from antiphon.stage.admission import Admission
from antiphon.stage.engine import StageEngine
from antiphon.stage.figures import Figures
from antiphon.stage.idle_check import IdleCheck
from antiphon.stage.messages import (
    Abort,
    Aborted,
    Command,
    Deliver,
    Discard,
    Event,
    Inspect,
    Interrupt,
    Interrupted,
    Measure,
    Output,
    Ready,
    Sleep,
    Starting,
    Step,
    Stop,
    Stopped,
    Submit,
    Update,
    Used,
    Wake,
)
from antiphon.stage.report import Frames, named, report
from antiphon.stage.slumber import Held, Slumber
from antiphon.stage.spec import StageSpec

Send = Callable[[Event, Frames], None]

_LOOK_S = 1.0


class StageHost:
    """One stage. Every method runs on the thread that built it."""

    def __init__(self, spec: StageSpec, send: Send) -> None:
        self.spec = spec
        self._send = send
        self._aborts: list[Abort] = []
        self._questions: list[Inspect] = []  # wait for the next step
        self.stopped = False
        send(Starting("loading the model"), [])
        self._engine = StageEngine(spec)
        self.scheduler = self._engine.scheduler
        self._admission = Admission(spec, self._engine)
        self._slumber = Slumber(self._engine, lambda event: send(event, []), self._start)
        strict = spec.check_every_step
        self._idle_check = IdleCheck(spec.name, self.check_integrity, strict=strict)
        self._figures = Figures(self._engine, self._slumber, self._idle_check)
        config = self._engine.config
        send(
            Ready(
                max_model_len=config.model_config.max_model_len,
                num_blocks=self._engine.num_blocks,
                block_size=config.cache_config.block_size,
                vllm_version=_vllm_version(),
            ),
            [],
        )

    # --- what the loop asks -------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything; true also once a deadline or a check is due, and when
        no step can be done any more.
        """
        due = self._idle_check.is_due or self._engine.workers.failed
        return not self.stopped and (self._engine.has_work or due)

    def next_due(self) -> float | None:
        """time.monotonic() at which a deadline expires or a check is due, if any is.

        Processes that compute for this one are looked at every second: their end wakes nobody.
        """
        look = time.monotonic() + _LOOK_S if self._engine.workers.apart else None
        dues = (self.scheduler.next_due(), self._idle_check.due, look)
        return None if self.stopped else min((d for d in dues if d is not None), default=None)

    def handle(self, command: Command) -> None:
        """Carry out one command. Errors go back as events, never up."""
        match command:
            case Submit() | Deliver() | Update() | Interrupt():
                self._start_or_hold(command)
            case Used():
                self.scheduler.used(command.edge, command.keys)
            case Discard():
                self.scheduler.discard(command.keys)
            case Abort():
                self._abort(command)
            case Sleep():
                self._slumber.sleep(command)
            case Wake():
                self._slumber.wake(command)
            case Inspect():
                self._questions.append(command)
                self._answer()
            case Measure():
                self._send(self._figures.measured(command.token), [])
            case Stop():
                self.stop()

    def step(self) -> None:
        """One engine step. What the model raises ends the step's requests and no others.

        Raises StageDiedError when a process that computes for this one has ended or does not
        answer: nothing can be computed here any more.
        """
        self._check_workers()
        if self._idle_check.is_due and not self._engine.has_work:
            self._idle_check.run()
            return
        try:
            outputs = self._engine.step().outputs
        except Exception as error:
            self._check_workers(error)
            message = " ".join(str(error).split()) or "no message"
            failure = StageStepError(
                f"stage '{self.spec.name}' failed in a step: {type(error).__name__}: {message}"
            )
            if not (concerned := self.scheduler.in_flight()):
                raise  # no request is to blame, so the next step would raise it again
            self.scheduler.forget_prefixes()
            self.scheduler.fail_requests(concerned, failure)
            self._engine.forget_audio()
            outputs = self.scheduler.take_endings()
            self._engine.note_endings(outputs)
        self._figures.steps += 1
        self._report(outputs)
        if self._aborts:
            self._acknowledge_aborts()
        self._answer()
        self._slumber.settle()
        if self.spec.check_every_step:
            self.check_integrity()
        self._idle_check.stepped(idle=not self._engine.has_work)

    def _check_workers(self, error: Exception | None = None) -> None:
        """`error` is what a step has raised."""
        workers = self._engine.workers
        if workers.failed:
            raise StageDiedError("a worker process has ended") from error
        if workers.apart and isinstance(error, TimeoutError):
            # Its late answer would be taken for that to the next step.
            raise StageDiedError("a worker process does not answer") from error

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self._engine.shutdown()
            self._send(Stopped(), [])

    # --- parts --------------------------------------------------------------------------------

    def _start_or_hold(self, command: Held) -> None:
        """While the stage sleeps everything waits but an interruption of what has begun."""
        runs = isinstance(command, Interrupt) and not self._slumber.holds(command.uid)
        if runs or self._slumber.awake:
            self._start(command)
        else:
            self._slumber.hold(command)

    def _start(self, command: Held) -> None:
        """Begin a request, let it go on, or end its segment."""
        match command:
            case Submit():
                self._submit(command)
            case Deliver():
                for uid, ref in command.items:
                    self.scheduler.deliver(uid, ref)
            case Update():
                self._update(command)
            case Interrupt():
                self._interrupt(command)

    def _submit(self, submit: Submit) -> None:
        try:
            self._admission.admit(submit)
        except AntiphonError as error:
            info = named(self.spec.name, error.to_wire())
            failed = Output(submit.uid, finish="error", error=info)
            self._send(Step([failed], []), [])

    def _update(self, update: Update) -> None:
        """An update that cannot be is the end of its session."""
        try:
            self._engine.update(update)
            self._report([])  # the segment that a replacement has ended
        except AntiphonError as error:
            if update.uid in self.scheduler.requests:
                self.scheduler.fail_requests([update.uid], error)
            else:
                info = named(self.spec.name, error.to_wire())
                failed = Output(update.uid, finish="error", error=info)
                self._send(Step([failed], []), [])

    def _interrupt(self, command: Interrupt) -> None:
        """Tokens that are accepted have been reported; what is in flight never will be."""
        if self._engine.interrupt(command.uid):
            self._report([])
        self._send(Interrupted(command.uid, command.token), [])

    def _abort(self, command: Abort) -> None:
        dropped = self._slumber.drop(command.uids)
        self._engine.abort(command.uids)
        for held in dropped:
            if isinstance(held, Interrupt):
                self._send(Interrupted(held.uid, held.token), [])
            elif isinstance(held, Deliver):
                self._start(held)  # too late now: what was sent is freed
        self.scheduler.abandon(command.uids)
        self._aborts.append(command)
        if not self._engine.has_work:
            self._acknowledge_aborts()

    def _acknowledge_aborts(self) -> None:
        """Aborted requests are gone from scheduler and worker once a step has told the worker, and
        their blocks are free once nothing copies them any more.
        """
        waiting = []
        for command in self._aborts:
            if (
                self.scheduler.finished_req_ids.isdisjoint(command.uids)
                and not any(uid in self.scheduler.requests for uid in command.uids)
                and not self.scheduler.handoffs.holds(command.uids)
            ):
                self._send(Aborted(command.uids, command.token), [])
            else:
                waiting.append(command)
        self._aborts = waiting

    def _report(self, engine_outputs: list[EngineCoreOutput]) -> None:
        step, frames = report(self.spec.name, self.scheduler.coordinator, engine_outputs)
        if step.outputs or step.refs or step.used:
            self._send(step, frames)

    def check_integrity(self) -> dict[str, int]:
        """Check every store; what the worker holds. AssertionError if one disagrees."""
        self._engine.check_integrity()
        self._slumber.check_integrity()
        if self._aborts and not (self._engine.has_work or self.scheduler.handoffs.holding):
            raise AssertionError("an abort is not acknowledged, and nothing is left to wait for")
        try:
            held: dict[str, int] = self._engine.call_workers("stage_inspect")[0]
        except RuntimeError as error:  # what becomes of an AssertionError in a process of its own
            raise AssertionError(str(error)) from error
        return held

    def _answer(self) -> None:
        """Once the worker knows of every end, so that nothing is counted that is over."""
        if not self._questions or self.scheduler.finished_req_ids:
            return
        questions, self._questions = self._questions, []
        for question in questions:
            self._send(self._figures.inspection(question.token, self.check_integrity), [])


def _vllm_version() -> str:
    import vllm

    return str(vllm.__version__)
