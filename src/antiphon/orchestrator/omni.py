"""A pipeline that runs: `AsyncOmni` for asyncio, `Omni` for everything else."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from antiphon.connector.runs import new_run_token, remove_payloads
from antiphon.core.options import Scalar
from antiphon.errors import AntiphonError, InvalidRequestError, ShutdownError
from antiphon.orchestrator.administration import Administration, OnNotice
from antiphon.orchestrator.admission import Admission
from antiphon.orchestrator.api import Finished, OmniEvent, OmniRequest, Reply
from antiphon.orchestrator.conversation import Messages
from antiphon.orchestrator.flow import FlowPlan
from antiphon.orchestrator.intake import Intake
from antiphon.orchestrator.live import LiveRequest
from antiphon.orchestrator.preparation import Preparation
from antiphon.orchestrator.replica import Replica
from antiphon.orchestrator.router import Router
from antiphon.orchestrator.segments import LiveSession, SessionPlan
from antiphon.orchestrator.sessions import Sampling, Session
from antiphon.orchestrator.stages import MakeClient, StageSet
from antiphon.orchestrator.tasks import Progress, in_thread, to_the_end
from antiphon.orchestrator.timers import Later, on_loop
from antiphon.pipeline.defaults import chosen_pipeline, fill_defaults
from antiphon.pipeline.deployed import deployed
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.deployment_file import load_deployment
from antiphon.pipeline.entry import AnyPrompt
from antiphon.pipeline.facts import completed
from antiphon.pipeline.topology import Topology
from antiphon.stage.resolve import resolve_stages

CLOSE_TIMEOUT_S = 10.0  # for the stages to let go of what runs


class AsyncOmni(Administration):
    """One pipeline. Made anywhere, used on one event loop.

    `pipeline` None is the deployment's, and voice where that names none. `deployment` is a
    Deployment or a YAML file; `model` is the checkpoint of all stages, or one for
    each that is named, in place of the deployment's `models`; `entries`, `modalities` and `inputs`
    ("text", "audio") limit which stages start (None: all), and a request that needs another is
    refused. `max_queued` is how many requests may wait at each stage beyond those that it serves at
    a time; None is no bound.
    `on_notice` is told in one line of each stage that is lost, and of what follows.
    `make_client` starts the stages in another way than as vLLM engines, as `antiphon.testing` does;
    `clock` and `later` are another time to go by.
    """

    def __init__(
        self,
        pipeline: str | Topology | None = None,
        *,
        deployment: Deployment | str | Path | None = None,
        model: str | Path | Mapping[str, str | Path] | None = None,
        entries: Sequence[str] | None = None,
        modalities: Sequence[str] | None = None,
        inputs: Sequence[str] | None = None,
        in_process: bool | None = None,
        on_progress: Progress | None = None,
        max_queued: int | None = None,
        make_client: MakeClient | None = None,
        on_notice: OnNotice | None = None,
        clock: Callable[[], float] = time.monotonic,
        later: Later = on_loop,
    ) -> None:
        given = deployment or Deployment()
        if not isinstance(given, Deployment):
            given = load_deployment(given)
        if model is not None:
            given = given.with_models(model)
        if in_process is not None:
            given = msgspec.structs.replace(given, in_process=in_process)
        topology = chosen_pipeline(pipeline, given)
        self.deployment = fill_defaults(topology, given)
        self.topology = deployed(topology, self.deployment)
        self._entries = entries
        self._make_client = make_client
        self._modalities = modalities
        self._inputs = inputs
        self._on_progress = on_progress or (lambda stage, phase: None)
        limits = _limits(self.deployment, max_queued)
        self._run = new_run_token()
        reclaim = partial(remove_payloads, self._run)
        self._later = later
        super().__init__(Router(clock, Admission(limits, clock), reclaim, later), on_notice)
        self._intake: Intake | None = None
        self._preparation = Preparation()

    # --- life ---------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Fetch models if need be; `check` works from here on. `start` does it if nobody has."""
        self._specs = await in_thread(
            lambda progress: resolve_stages(
                self.topology,
                self.deployment,
                run=self._run,
                entries=self._entries,
                modalities=self._modalities,
                inputs=self._inputs,
                on_progress=progress,
            ),
            self._on_progress,
        )
        self._replicas = {
            Replica(name, index): spec
            for name, spec in self._specs.items()
            for index in range(self.deployment.replicas[name])
        }
        models = {name: spec.model for name, spec in self._specs.items()}
        self.topology = await asyncio.to_thread(completed, self.topology, models)
        self._intake = await asyncio.to_thread(Intake, self.topology, models, self._entries)

    async def start(self) -> None:
        """Start every stage, and return when all are ready. Raises StageStartError."""
        if self._stages is not None:
            raise InvalidRequestError("the pipeline has been started already")
        if self._intake is None:
            await self.prepare()
        stages = self._stages = StageSet(
            self._replicas,
            self,
            run=self._run,
            supervision=self.deployment.supervision,
            in_process=self.deployment.in_process,
            on_progress=self._on_progress,
            make_client=self._make_client,
            clock=self._router.clock,
            later=self._later,
        )
        try:
            await stages.start(self.deployment.start_timeout_s)
        except BaseException:
            self._stages = None
            await to_the_end(stages.stop())
            raise
        self._router.attach(stages.clients)
        self._ready = True

    async def close(self) -> None:
        """Fail what is running, stop every stage, leave nothing behind. May be called twice."""
        stages, self._stages = self._stages, None
        self._ready, self._closed = False, True
        self._preparation.close()
        if stages is not None:
            await to_the_end(self._close(stages))

    async def _close(self, stages: StageSet) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._router.close()
        except TimeoutError:
            pass  # a stage that no longer answers is ended below
        finally:
            try:
                await stages.stop()
            finally:
                # No stage answers any more: whoever waits for one is told.
                self._router.abandon()
                self._questions.abandon()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- requests -----------------------------------------------------------------------------

    async def stream(self, request: OmniRequest) -> AsyncGenerator[OmniEvent]:
        """Events as they come; the last one is `Finished`. Leaving early aborts the request.

        Raises the request's one error: CallerError for a bad request, StageError if serving failed.
        """
        live = await self._submit(request)
        try:
            while True:
                event = await live.events.get()
                if isinstance(event, AntiphonError):
                    try:
                        raise event
                    finally:
                        del event  # its traceback holds this frame
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            live.end(None, "disconnect")  # harmless if it has ended
            await asyncio.shield(live.known.wait())

    async def generate(self, request: OmniRequest) -> Reply:
        """The whole reply."""
        async with contextlib.aclosing(self.stream(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    return event.reply
        raise ShutdownError("the request's stream ended without an outcome")

    def session(
        self,
        *,
        entry: str = "chat",
        modalities: tuple[str, ...] | None = None,
        messages: Messages = (),
        sampling: Sampling | None = None,
        params: Mapping[str, Scalar] | None = None,
        input_wait_timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> Session:
        """A conversation whose history stays in the model; enter it with `async with`.

        The arguments are `OmniRequest`'s; `messages` are what the conversation begins with, without
        audio.
        """
        request = OmniRequest(
            entry=entry,
            modalities=modalities,
            messages=list(messages),
            sampling=sampling or {},
            params=dict(params or {}),
            input_wait_timeout_s=input_wait_timeout_s,
            request_id=request_id,
        )
        return Session(request, self._enter_session)

    async def abort(self, request_id: str) -> bool:
        """End the request or session with this caller's id; True once every stage has acknowledged.

        Its stream ends with `Finished` and finish reason "abort". False for an unknown id.
        """
        live = self._router.find(request_id)
        if live is None:
            return False
        await self._router.abort(live)
        return True

    async def check(self, request: OmniRequest) -> Sequence[AnyPrompt]:
        """Everything about a request that needs no stage: the prompts it would start with.

        Raises CallerError for a request that cannot be served as it is. `prepare` comes first.
        """
        path = request.check(self.topology)
        return await self._preparation.prompts(self._prepared(), request, path)

    async def _submit(self, request: OmniRequest) -> LiveRequest:
        try:
            return await self._submitted(request)
        except AntiphonError as error:
            self._router.observers.refused(error)
            raise

    async def _submitted(self, request: OmniRequest) -> LiveRequest:
        self._serving()
        began_s = self._router.clock()
        path, intake = request.check(self.topology), self._prepared()
        with self._router.preparing(request.request_id, path):
            prompts = await self._preparation.prompts(intake, request, path)
        self._serving()  # it may have been closed meanwhile
        plan = FlowPlan(
            self._router.new_uid(),
            self.topology,
            path,
            request,
            intake.detokenizer(request, path),
            transcript=intake.transcript(request, path),
        )
        return self._router.submit(plan, prompts, request, began_s)

    def _enter_session(self, request: OmniRequest) -> tuple[LiveSession, Intake]:
        try:
            return self._entered_session(request)
        except AntiphonError as error:
            self._router.observers.refused(error)
            raise

    def _entered_session(self, request: OmniRequest) -> tuple[LiveSession, Intake]:
        self._serving()
        path, intake = request.check_options(self.topology), self._prepared()
        intake.check_session(request, path)
        uid = self._router.new_uid()
        plan = SessionPlan(uid, request.request_id, self.topology, path)
        return self._router.open_session(plan), intake

    def _prepared(self) -> Intake:
        if self._intake is None:
            raise InvalidRequestError("the pipeline is not prepared; call prepare() or start()")
        return self._intake


def _limits(deployment: Deployment, max_queued: int | None) -> dict[str, int]:
    """Requests that each stage may have; `deployment` is filled."""
    if max_queued is None:
        return {}
    return {
        name: deployment.replicas[name] * (stage.max_num_seqs or 1) + max_queued
        for name, stage in deployment.stages.items()
    }
