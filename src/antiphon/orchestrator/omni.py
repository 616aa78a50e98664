"""A pipeline that runs: `AsyncOmni` for asyncio, `Omni` for everything else."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from antiphon.connector.runs import new_run_token
from antiphon.errors import AntiphonError, ShutdownError, TopologyError, from_wire
from antiphon.orchestrator.api import Finished, OmniEvent, OmniRequest, Reply
from antiphon.orchestrator.clients import Frames
from antiphon.orchestrator.flow import FlowPlan
from antiphon.orchestrator.router import LiveRequest, Router
from antiphon.orchestrator.stages import StageSet
from antiphon.pipeline.defaults import fill_defaults
from antiphon.pipeline.deployment import Deployment, load_deployment
from antiphon.pipeline.detokenize import Detokenizer, load_tokenizer
from antiphon.pipeline.entry import EntryAdapter, EntryRequest, Message
from antiphon.pipeline.registry import load_pipeline
from antiphon.pipeline.topology import Stage, Topology
from antiphon.stage.messages import Acknowledged, Command, Event, Inspect, Inspection, Sleep, Wake
from antiphon.stage.resolve import resolve_stages
from antiphon.stage.spec import StageSpec

Progress = Callable[[str, str], None]  # (stage, what it is doing)
T = TypeVar("T")


class AsyncOmni:
    """One pipeline. Made anywhere, used on one event loop.

    `deployment` is a Deployment or a YAML file; `entries` limits which stages start (None: all).
    """

    def __init__(
        self,
        pipeline: str | Topology = "voice",
        *,
        deployment: Deployment | str | Path | None = None,
        entries: Sequence[str] | None = None,
        modalities: Sequence[str] | None = None,
        in_process: bool | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        self.topology = pipeline if isinstance(pipeline, Topology) else load_pipeline(pipeline)
        given = deployment or Deployment(pipeline=self.topology.name)
        if not isinstance(given, Deployment):
            given = load_deployment(given)
        if in_process is not None:
            given = msgspec.structs.replace(given, in_process=in_process)
        self.deployment = fill_defaults(self.topology, given)
        self._entries = entries
        self._modalities = modalities
        self._on_progress = on_progress or (lambda stage, phase: None)
        self._router = Router()
        self._run = new_run_token()
        self._specs: dict[str, StageSpec] = {}
        self._stages: StageSet | None = None
        self._adapters: dict[str, EntryAdapter] = {}
        self._tokens = itertools.count()
        self._answers: dict[int, tuple[str, asyncio.Future[Acknowledged | Inspection]]] = {}

    # --- life ---------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Fetch models if need be; `check` works from here on. `start` does it if nobody has."""
        self._specs = await _in_thread(
            lambda progress: resolve_stages(
                self.topology,
                self.deployment,
                run=self._run,
                entries=self._entries,
                modalities=self._modalities,
                on_progress=progress,
            ),
            self._on_progress,
        )
        self._adapters = await asyncio.to_thread(self._load_adapters)

    async def start(self) -> None:
        """Start every stage, and return when all are ready."""
        if not self._specs:
            await self.prepare()
        self._stages = StageSet(
            self._specs,
            in_process=self.deployment.in_process,
            run=self._run,
            on_event=self._on_event,
            on_gone=self._on_gone,
            on_progress=self._on_progress,
        )
        try:
            await self._stages.start(self.deployment.start_timeout_s)
        except BaseException:
            await asyncio.shield(self._stages.stop())
            raise
        self._router.attach(self._stages.clients)

    async def close(self) -> None:
        """Fail what is running, stop every stage, leave nothing behind. May be called twice."""
        stages, self._stages = self._stages, None
        if stages is not None:
            try:
                async with asyncio.timeout(10):
                    await self._router.close()
            except TimeoutError:
                pass  # a stage that no longer answers is ended below
            finally:
                await stages.stop()

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
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            await asyncio.shield(self._router.abort(live))

    async def generate(self, request: OmniRequest) -> Reply:
        """The whole reply."""
        async for event in self.stream(request):
            if isinstance(event, Finished):
                return event.reply
        raise ShutdownError("the request's stream ended without an outcome")

    async def abort(self, request_id: str) -> bool:
        """End the request with this caller's id; True once every stage has acknowledged.

        Its stream ends with `Finished` and finish reason "abort". False for an unknown id.
        """
        live = self._router.find(request_id)
        if live is None:
            return False
        await self._router.abort(live)
        return True

    async def check(self, request: OmniRequest) -> list[list[int]]:
        """Everything about a request that needs no stage: the prompts it would start with.

        Raises CallerError for a request that cannot be served as it is. `prepare` comes first.
        """
        request.check(self.topology)
        adapter = self._adapters[request.entry]
        return await asyncio.to_thread(adapter.prompts, _entry_request(request))

    async def _submit(self, request: OmniRequest) -> LiveRequest:
        if self._stages is None:
            raise ShutdownError("the pipeline is not running; call start() first")
        prompts = await self.check(request)
        path = request.check(self.topology)
        plan = FlowPlan(self._router.new_uid(), self.topology, path, request, self._text(path))
        return self._router.submit(plan, prompts, request)

    def _text(self, path: Sequence[Stage]) -> Detokenizer | None:
        for stage in path:
            if stage.output == "text":
                return Detokenizer(load_tokenizer(self._specs[stage.name].model))
        return None

    def _load_adapters(self) -> dict[str, EntryAdapter]:
        adapters = {}
        wanted = self._entries or [entry.name for entry in self.topology.entries]
        for entry in self.topology.entries:
            if entry.stage in self._specs and entry.name in wanted:
                module, _, name = entry.adapter.partition(":")
                try:
                    maker = vars(importlib.import_module(module))[name]
                except (ImportError, KeyError) as error:
                    raise TopologyError(f"entry adapter '{entry.adapter}': {error}") from error
                adapters[entry.name] = maker(Path(self._specs[entry.stage].model))
        return adapters

    # --- administration -----------------------------------------------------------------------

    async def sleep(self, level: int = 1) -> dict[str, int]:
        """Have every stage give memory back; bytes freed per stage. Requests wait until `wake`."""
        answers = await self._ask(lambda token: Sleep(level, token))
        return {name: a.bytes_freed for name, a in answers.items() if isinstance(a, Acknowledged)}

    async def wake(self, tags: list[str] | None = None) -> None:
        """Undo `sleep`."""
        await self._ask(lambda token: Wake(tags, token))

    async def inspect(self) -> dict[str, Inspection]:
        """Check every store of every stage; what each holds."""
        self._router.check_integrity()
        answers = await self._ask(Inspect)
        return {name: a for name, a in answers.items() if isinstance(a, Inspection)}

    async def _ask(self, command: Callable[[int], Command]) -> dict[str, Acknowledged | Inspection]:
        if self._stages is None:
            raise ShutdownError("the pipeline is not running; call start() first")
        loop = asyncio.get_running_loop()
        futures = {}
        for name, client in self._stages.clients.items():
            self._router.require(name)
            token = next(self._tokens)
            futures[name] = loop.create_future()
            self._answers[token] = (name, futures[name])
            client.send(command(token))
        answers = await asyncio.gather(*futures.values())
        return dict(zip(futures, answers, strict=True))

    def _on_gone(self, stage: str, why: AntiphonError) -> None:
        self._router.on_gone(stage, why)
        for name, future in self._answers.values():
            if name == stage and not future.done():
                future.set_exception(why)
        self._answers = {t: a for t, a in self._answers.items() if a[0] != stage}

    def _on_event(self, stage: str, event: Event, frames: Frames) -> None:
        if isinstance(event, Acknowledged | Inspection):
            _, future = self._answers.pop(event.token, (stage, None))
            if future is not None and not future.done():
                _settle(future, stage, event)
        else:
            self._router.on_event(stage, event, frames)


async def _in_thread(work: Callable[[Progress], T], on_progress: Progress) -> T:
    """Run `work` in a thread; a cancellation ends it at its next sign of progress."""
    cancelled = threading.Event()

    def progress(stage: str, phase: str) -> None:
        if cancelled.is_set():
            raise ShutdownError("the pipeline was closed while its models were made ready")
        on_progress(stage, phase)

    thread = asyncio.ensure_future(asyncio.to_thread(work, progress))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait([thread])
        if not thread.cancelled():
            thread.exception()  # seen: the cancellation is what the caller gets
        raise


def _entry_request(request: OmniRequest) -> EntryRequest:
    """What the entry's adapter is given: one text, or a conversation that ends with it."""
    if not request.messages:
        return EntryRequest(text=request.text)
    return EntryRequest(messages=msgspec.convert(request.conversation(), tuple[Message, ...]))


def _settle(
    future: asyncio.Future[Acknowledged | Inspection],
    stage: str,
    answer: Acknowledged | Inspection,
) -> None:
    if answer.error is None:
        future.set_result(answer)
    else:
        error = from_wire(answer.error)
        future.set_exception(type(error)(f"stage '{stage}': {error}"))
