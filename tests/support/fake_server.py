"""The real server over fake stages: real sockets, the real router, no engine.

`FakeServer` runs on a thread with an event loop of its own, so that tests may use blocking clients.
What a test does with the stages has to happen on that loop: `server.on_loop(function)`.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from antiphon import AsyncOmni
from antiphon.orchestrator.clients import OnEvent, OnGone
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.entry import EntryRequest
from antiphon.pipeline.supervision import Supervision
from antiphon.pipeline.topology import EdgeMode, Entry, Topology
from antiphon.serve.app import create_app
from antiphon.serve.run import bind, listening_on, url_of
from antiphon.serve.service import Service
from antiphon.serve.settings import ServeSettings
from antiphon.stage.messages import Ready
from antiphon.stage.spec import StageSpec
from antiphon.testing.fake_stage import Answer, FakeStage
from routing import WORDS
from sample_pipeline import TOPOLOGY

T = TypeVar("T")

ANSWERS: Mapping[str, Answer] = {
    "thinker": Answer(token_ids=(1, 2, 3)),  # "one two three"
    "talker": Answer(token_ids=(4, 5)),
    "code2wav": Answer(samples=(0.0, 0.5, -0.5, 0.25) * 1200),  # 0.2 s at 24 kHz
}
ONE_LIFE = Deployment(supervision=Supervision(restarts=0))
BY_HAND: Mapping[str, Answer] = {}


class WordsEntry:
    """Any text is a prompt; its length in words is the prompt's."""

    seen: list[EntryRequest] = []  # noqa: RUF012 - what tests look at

    def __init__(self, checkpoint: Path) -> None: ...

    def prompts(self, request: EntryRequest) -> Sequence[list[int]]:
        self.seen.append(request)
        texts = [request.text, *(message.content for message in request.messages)]
        return [[1] * max(1, sum(len(text.split()) for text in texts))]


FAKE = replace(
    TOPOLOGY,
    name="fake",
    stages=tuple(replace(stage, model="fake_server:checkpoint") for stage in TOPOLOGY.stages),
    edges=tuple(replace(edge, mode=EdgeMode.STREAM, split=False) for edge in TOPOLOGY.edges),
    entries=(
        Entry(
            "chat",
            "thinker",
            "fake_server:WordsEntry",
            inputs=("text", "audio"),
            params=("speaker",),
        ),
        Entry("speech", "talker", "fake_server:WordsEntry", params=("speaker",)),
    ),
)


def checkpoint(progress: Callable[[str, float | None], None]) -> Path:
    """A folder with a tokenizer whose token n is a word; one for this process."""
    return _checkpoint()


@functools.cache
def _checkpoint() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="antiphon-fake-"))
    atexit.register(shutil.rmtree, folder)
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="zero"))  # noqa: S106  no password
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "fake"}))
    return folder


class FakeServer:
    """Started by entering it; `answers` {} has every stage driven by hand."""

    def __init__(
        self,
        *,
        answers: Mapping[str, Answer] = ANSWERS,
        topology: Topology = FAKE,
        ready: bool = True,
        settings: Mapping[str, Any] | None = None,
        deployment: Deployment = ONE_LIFE,
    ) -> None:
        self._answers = answers
        self._ready = ready
        self.settings = ServeSettings(port=0, **(settings or {}))
        self.stages: dict[str, FakeStage] = {}
        self.omni = AsyncOmni(
            topology,
            deployment=deployment,
            make_client=self._make_client,
            max_queued=self.settings.max_queued,
        )
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._stop: asyncio.Event
        self._running: concurrent.futures.Future[None]

    def _make_client(self, spec: StageSpec, on_event: OnEvent, on_gone: OnGone) -> FakeStage:
        keys = next(iter(self.stages.values())).keys if self.stages else set()
        answer = self._answers.get(spec.name)
        stage = FakeStage(spec.name, on_event, on_gone, keys=keys, answer=answer)
        self.stages[spec.name] = stage
        if self._ready:
            stage.emit(READY)
        return stage

    def __enter__(self) -> Self:
        self._thread.start()
        self.service = self.on_loop(self._make_service)
        up = threading.Event()
        self._running = asyncio.run_coroutine_threadsafe(self._serve(up), self._loop)
        assert up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.on_loop(self.check_integrity)
        finally:
            self._end()

    def _end(self) -> None:
        self.on_loop(self._stop.set)
        self._running.result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _make_service(self) -> Service:
        self._stop = asyncio.Event()
        return Service(self.omni, self.settings)

    async def _serve(self, up: threading.Event) -> None:
        socket = bind("127.0.0.1", 0)
        self.url = url_of(socket)
        async with listening_on(create_app(self.service), socket, self.settings):
            starting = asyncio.ensure_future(self.service.start())
            if self._ready:
                await starting
            up.set()
            await self._stop.wait()
            starting.cancel()
            await self.service.close()

    def on_loop(self, function: Callable[[], T]) -> T:
        """Call `function` on the server's loop; what it returns."""

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def run(self, work: Awaitable[T]) -> T:
        """Run a coroutine on the server's loop."""

        async def call() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(20)

    def wait_for(self, condition: Callable[[], T], timeout_s: float = 10) -> T:
        """What `condition` gives on the server's loop once it is true."""
        due = time.monotonic() + timeout_s
        while not (found := self.on_loop(condition)):
            assert time.monotonic() < due, "it did not become true"
            threading.Event().wait(0.005)
        return found

    def check_integrity(self) -> None:
        """Raise AssertionError if any table of pipeline, stages or server disagrees."""
        # Not `inspect`, which asks stages that a test may have ended.
        self.omni._router.check_integrity()
        for stage in self.stages.values():
            stage.check_integrity()
        self.service.timelines.check_integrity()
        self.service.metrics.check_integrity()
        self.service.bodies.check_integrity(self.service.open_calls)

    def check_clean(self) -> None:
        """Nothing is left of any call: no request, no stage's unit, no payload."""
        self.wait_for(lambda: self.omni.num_running == 0 and self.service.open_calls == 0)
        for stage in self.stages.values():
            self.wait_for(lambda stage=stage: not stage.live)  # type: ignore[misc]
        assert not next(iter(self.stages.values())).keys
        self.wait_for(lambda: not len(self.service.metrics))


READY = Ready(max_model_len=1024, num_blocks=10, block_size=16, vllm_version="none")
