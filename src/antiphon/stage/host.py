"""The host of a stage: takes commands, steps the engine, reports what each step brought.

Not a loop: `serve` (loop.py) drives one or several hosts from one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from antiphon.core.deadlines import effective_timeout
from antiphon.errors import (
    AntiphonError,
    DuplicateRequestError,
    EmptyInputError,
    ErrorInfo,
    StageStepError,
)
from antiphon.pipeline.topology import StageKind
from antiphon.sched.coordinator import Wait
from antiphon.stage.engine import StageEngine
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
    Output,
    Ready,
    Sleep,
    Starting,
    Step,
    Stop,
    Stopped,
    Submit,
    Tensor,
    Update,
    Used,
    Wake,
)
from antiphon.stage.spec import StageSpec

Frames = list[memoryview]
Send = Callable[[Event, Frames], None]

DROPS_WEIGHTS = 2  # vLLM's sleep level without a copy of the weights
_MEMORY = frozenset({"weights", "kv_cache"})  # vLLM's names of what a worker gives back


class StageHost:
    """One stage. Every method runs on the thread that built it."""

    def __init__(self, spec: StageSpec, send: Send) -> None:
        self.spec = spec
        self._send = send
        self._aborts: list[Abort] = []
        # What arrived while the stage sleeps or is about to.
        self._held: list[Submit | Deliver | Update] = []
        self._asleep: frozenset[str] = frozenset()  # memory that has been given back
        self._level = 0  # of the sleep; 2 has dropped the weights
        self._bedtime: Sleep | None = None  # carried out when the last running request has ended
        self._steps = 0
        self.stopped = False
        started = time.monotonic()
        send(Starting("loading the model"), [])
        self._engine = StageEngine(spec)
        self.scheduler = self._engine.scheduler
        config = self._engine.config
        send(
            Ready(
                max_model_len=config.model_config.max_model_len,
                num_blocks=self._engine.num_blocks,
                block_size=config.cache_config.block_size,
                start_seconds=time.monotonic() - started,
                vllm_version=_vllm_version(),
            ),
            [],
        )

    # --- what the loop asks -------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything; true also once a deadline is due."""
        return not self.stopped and self._engine.has_work

    def next_due(self) -> float | None:
        """time.monotonic() at which a deadline expires, if any is running."""
        return None if self.stopped else self.scheduler.next_due()

    def handle(self, command: Command) -> None:
        """Carry out one command. Errors go back as events, never up."""
        match command:
            case Submit() | Deliver() | Update():
                self._start(command)
            case Used():
                self.scheduler.used(command.edge, command.keys)
            case Discard():
                self.scheduler.discard(command.keys)
            case Interrupt():
                self._interrupt(command)
            case Abort():
                self._abort(command)
            case Sleep():
                self._sleep(command)
            case Wake():
                self._wake(command)
            case Inspect():
                self._send(self._inspect(command), [])
            case Stop():
                self.stop()

    def step(self) -> None:
        """One engine step. What the model raises ends the step's requests and no others."""
        try:
            outputs = self._engine.step().outputs
        except Exception as error:
            message = " ".join(str(error).split()) or "no message"
            failure = StageStepError(
                f"stage '{self.spec.name}' failed in a step: {type(error).__name__}: {message}"
            )
            if not (concerned := self.scheduler.in_flight()):
                raise  # no request is to blame, so the next step would raise it again
            self.scheduler.fail_requests(concerned, failure)
            outputs = self.scheduler.take_endings()
        self._steps += 1
        self._report(outputs)
        if self._aborts:
            self._acknowledge_aborts()
        if self._bedtime is not None and not self._engine.has_work:
            self._fall_asleep(self._bedtime)
        if self.spec.check_every_step:
            self._check()

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self._engine.shutdown()
            self._send(Stopped(), [])

    # --- parts --------------------------------------------------------------------------------

    def _start(self, command: Submit | Deliver | Update) -> None:
        """Begin a request or let it go on; while the stage sleeps it waits for that."""
        if self._asleep or self._bedtime is not None:
            self._held.append(command)
            return
        match command:
            case Submit():
                self._submit(command)
            case Deliver():
                for uid, ref in command.items:
                    self.scheduler.deliver(uid, ref)
            case Update():
                self._update(command)

    def _submit(self, submit: Submit) -> None:
        coordinator = self.scheduler.coordinator
        try:
            if submit.uid in self.scheduler.requests:
                raise DuplicateRequestError(f"request {submit.uid} is still running")
            if self.spec.kind is StageKind.AR and not (submit.token_ids or submit.waits_for):
                raise EmptyInputError("the prompt is empty")
            if error := self.scheduler.prompt_error(len(submit.token_ids)):
                raise error
            wait = self._wait(submit)
            coordinator.expect(
                submit.uid,
                wait=wait,
                edges=submit.edges,
                params=submit.params,
                num_prompt_tokens=len(submit.token_ids),
                epoch=submit.epoch,
            )
            try:
                self._engine.add(submit, in_chunks=wait is not None and wait.stream)
            except AntiphonError:
                coordinator.forget(submit.uid)
                raise
        except AntiphonError as error:
            failed = Output(submit.uid, finish="error", error=error.to_wire())
            self._send(Step([failed], []), [])

    def _wait(self, submit: Submit) -> Wait | None:
        if submit.waits_for is None:
            return None
        edge = next((e for e in self.spec.inputs if e.name == submit.waits_for), None)
        timeout = effective_timeout(self.spec.input_wait_timeout_s, submit.wait_timeout_s)
        return Wait(submit.waits_for, timeout, stream=edge is not None and edge.stream)

    def _update(self, update: Update) -> None:
        """An update that cannot be is the end of its session."""
        try:
            self._engine.update(update)
            self._report([])  # the segment that a replacement has ended
        except AntiphonError as error:
            if update.uid in self.scheduler.requests:
                self.scheduler.fail_requests([update.uid], error)
            else:
                failed = Output(update.uid, finish="error", error=error.to_wire())
                self._send(Step([failed], []), [])

    def _interrupt(self, command: Interrupt) -> None:
        """Tokens that are accepted have been reported; what is in flight never will be."""
        if self._engine.interrupt(command.uid):
            self._report([])
        self._send(Interrupted(command.uid, command.token), [])

    def _abort(self, command: Abort) -> None:
        self._held = [h for h in self._held if isinstance(h, Deliver) or h.uid not in command.uids]
        self._engine.abort(command.uids)
        self.scheduler.abandon(command.uids)
        self._aborts.append(command)
        if not self._engine.has_work:
            self._acknowledge_aborts()

    def _acknowledge_aborts(self) -> None:
        """Aborted requests are gone from scheduler and worker once a step has told the worker."""
        waiting = []
        for command in self._aborts:
            if self.scheduler.finished_req_ids.isdisjoint(command.uids) and not any(
                uid in self.scheduler.requests for uid in command.uids
            ):
                self._send(Aborted(command.uids, command.token), [])
            else:
                waiting.append(command)
        self._aborts = waiting

    def _report(self, engine_outputs: list) -> None:  # type: ignore[type-arg]
        events = self.scheduler.coordinator.take_events()
        # What ended in this update may be in its next segment already.
        ended = {end.uid: end.epoch for end in events.segments}
        frames: Frames = []
        outputs = []
        for out in engine_outputs:
            tensor = None if out.pooling_output is None else _pack(out.pooling_output, frames)
            finish = None if out.finish_reason is None else str(out.finish_reason)
            error = events.errors.pop(out.request_id, None)
            uid, ids = out.request_id, list(out.new_token_ids)
            epoch = ended[uid] if uid in ended else self.scheduler.coordinator.epoch(uid)
            outputs.append(Output(uid, ids, tensor, finish, out.stop_reason, error, epoch))
        for uid, info in events.errors.items():  # the request itself had ended before
            outputs.append(Output(uid, finish="error", error=info))
        for end in events.segments:
            outputs.append(Output(end.uid, epoch=end.epoch, segment_finish=end.reason))
        if outputs or events.refs or events.used:
            self._send(Step(outputs, events.refs, events.used), frames)

    def _sleep(self, command: Sleep) -> None:
        """Running requests finish before the stage sleeps: their blocks would be gone."""
        if self._asleep or self._bedtime is not None:
            self._acknowledge(command, 0, None)  # it sleeps, or is about to
            return
        self.scheduler.coordinator.gate.pause()  # payloads are held: no wait may run out
        if self._engine.has_work:
            self._bedtime = command
        else:
            self._fall_asleep(command)

    def _fall_asleep(self, command: Sleep) -> None:
        self._bedtime = None
        freed, error = self._attempt(
            lambda: self._engine.call_workers("stage_sleep", command.level)
        )
        if error is None:
            self._engine.reset_prefix_cache()
            self._asleep, self._level = _MEMORY, command.level
        self._acknowledge(command, sum(freed), error)
        self._go_on()

    def _wake(self, command: Wake) -> None:
        if self._bedtime is not None:
            early = ErrorInfo("stage", "the stage was woken before it slept")
            self._acknowledge(self._bedtime, 0, early)
            self._bedtime = None
        wanted = _MEMORY if command.tags is None else frozenset(command.tags)
        tags = sorted(wanted & self._asleep)
        error = None
        dropped = self._level == DROPS_WEIGHTS and "weights" in self._asleep
        if unknown := sorted(wanted - _MEMORY):
            error = ErrorInfo("stage", f"there is no memory {unknown[0]!r} to wake")
        elif dropped and "weights" not in wanted:
            error = ErrorInfo("stage", "level 2 dropped the weights: wake 'weights' first")
        elif tags:
            _, error = self._attempt(lambda: self._engine.call_workers("stage_wake", tags, dropped))
        if error is None:
            self._asleep -= wanted
        self._acknowledge(command, 0, error)
        self._go_on()

    def _go_on(self) -> None:
        """What arrived while the stage slept starts now."""
        if not self._asleep and self._bedtime is None:
            self.scheduler.coordinator.gate.resume()
            held, self._held = self._held, []
            for command in held:
                self._start(command)

    def _attempt(self, call: Callable[[], list[Any]]) -> tuple[list[Any], ErrorInfo | None]:
        """A call to the workers that may fail without ending the stage."""
        try:
            return call(), None
        except (RuntimeError, ValueError, AssertionError) as failure:
            return [], ErrorInfo("stage", f"{type(failure).__name__}: {failure}")

    def _acknowledge(self, command: Sleep | Wake, freed: int, error: ErrorInfo | None) -> None:
        self._send(Acknowledged(command.token, freed, error), [])

    def _check(self) -> dict[str, int]:
        """Check every store; what the worker holds. AssertionError if one disagrees."""
        self.scheduler.check_integrity()
        held: dict[str, int] = self._engine.call_workers("stage_inspect")[0]
        return held

    def _inspect(self, command: Inspect) -> Inspection:
        error = None
        held = {"requests": 0, "io": 0, "connector_entries": 0}
        try:
            held = self._check()
        except AssertionError as failure:
            error = ErrorInfo("integrity", str(failure))
        return Inspection(
            token=command.token,
            requests=len(self.scheduler.requests),
            gated=len(self.scheduler.coordinator.gate),
            free_blocks=self._engine.num_free_blocks,
            total_blocks=self._engine.num_blocks,
            worker_requests=held["requests"] + held["io"],
            connector_entries=held["connector_entries"],
            steps=self._steps,
            error=error,
        )


def _pack(tensor: torch.Tensor, frames: Frames) -> Tensor:
    """Append the tensor's bytes as a frame; dtypes that numpy lacks leave as float32."""
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    array = tensor.detach().cpu().contiguous().numpy()
    frames.append(array.reshape(-1).view(np.uint8).data)
    return Tensor(str(array.dtype), tuple(array.shape), len(frames) - 1)


def _vllm_version() -> str:
    import vllm

    return str(vllm.__version__)
