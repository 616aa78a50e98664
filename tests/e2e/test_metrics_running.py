"""C73: each metric of the table becomes more than 0 in pipelines that run, engines and all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from antiphon import AsyncOmni, AudioChunk, Deployment, OmniRequest
from antiphon.errors import DeadlineExceededError, OverloadedError
from antiphon.observe import table
from antiphon.observe.metrics import Metrics
from antiphon.observe.table import TABLE, Kind, Metric
from antiphon.orchestrator.api import OmniEvent
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.serve.metrics import scrape
from exposed import Exposed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

OCEAN = "Tell me about the ocean."

# A late output or chunk is rare luck; the router's and the gate's own tests make them happen.
LUCK = {table.LATE_OUTPUTS, table.LATE_CHUNKS}
OF_CACHES = {
    table.KV_HANDOFF,
    table.KV_HANDOFFS,
    table.KV_STORE,
    table.KV_BLOCKS,
    table.TTFI,
}


class Peaks:
    """The most that each series has been in any scrape."""

    def __init__(self, omni: AsyncOmni) -> None:
        self.omni = omni
        self.metrics = Metrics(omni.topology.name)
        omni.observe(self.metrics)
        self._most: dict[str, float] = {}

    async def look(self, timeout_s: float = 30.0) -> Exposed:
        found = Exposed((await scrape(self.omni, self.metrics, "", timeout_s))[0])
        found.check()
        for name, _, value in found.series:
            self._most[name] = max(self._most.get(name, 0.0), value)
        return found

    @contextlib.asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Scrape after scrape meanwhile."""

        async def look_on() -> None:
            while True:
                await asyncio.gather(self.look(), asyncio.sleep(0.2))

        task = asyncio.create_task(look_on())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def zeros(self, metrics: Iterator[Metric] | set[Metric]) -> set[str]:
        """Names of those that have been 0 all the time."""
        return {m.name for m in metrics if not self._most.get(_series(m))}

    def of(self, series: str) -> float:
        return self._most.get(series, 0.0)


async def _rest(stream: AsyncIterator[OmniEvent]) -> list[OmniEvent]:
    return [event async for event in stream]


def _series(metric: Metric) -> str:
    return metric.full_name + ("_count" if metric.kind is Kind.HISTOGRAM else "")


async def test_everything_that_is_counted_of_a_voice_moves() -> None:
    deployment = Deployment(
        metrics=True,
        stages={"thinker": StageDeployment(max_num_seqs=2)},
        edges={"codes": EdgeDeployment(request_chunks=1)},
    )
    async with AsyncOmni(
        "voice", entries=["chat"], inputs=["text"], deployment=deployment, max_queued=0
    ) as omni:
        peaks = Peaks(omni)
        async with peaks.looking():
            streams = [omni.stream(OmniRequest(text=OCEAN)) for _ in range(2)]
            await asyncio.gather(*(anext(stream) for stream in streams))
            with pytest.raises(OverloadedError):
                await omni.generate(OmniRequest(text=OCEAN))
            for events in await asyncio.gather(*(_rest(stream) for stream in streams)):
                assert any(isinstance(event, AudioChunk) for event in events)
        async for event in omni.stream(OmniRequest(text=OCEAN)):
            if isinstance(event, AudioChunk):
                break  # the caller leaves
        with pytest.raises(DeadlineExceededError):
            await omni.generate(OmniRequest(text=OCEAN, deadline_s=0.2))
        await peaks.look(timeout_s=0.0)
        found = await peaks.look()
        assert peaks.zeros(set(TABLE) - LUCK - OF_CACHES) == set()
        assert found.value("antiphon:requests_running") == 0
        for stage in ("thinker", "talker"):
            assert found.value("vllm:generation_tokens_total", stage=stage) > 0
            assert found.value("vllm:num_requests_running", stage=stage) == 0
        assert found.value("vllm:request_success_total", stage="code2wav") >= 2
        assert peaks.of("vllm:kv_cache_usage_perc") > 0
        assert found.value("antiphon:edge_depth_chunks") == 0
        await omni.inspect()  # no figures of a request outlive it


async def test_everything_that_is_counted_of_caches_moves() -> None:
    async with AsyncOmni("imagine", deployment=Deployment(metrics=True)) as omni:
        peaks = Peaks(omni)
        async with peaks.looking():
            for _ in range(3):
                await omni.generate(OmniRequest(text="What is the capital of France?"))
        found = await peaks.look()
        assert peaks.zeros(OF_CACHES - {table.KV_BLOCKS}) == set()
        assert found.value("antiphon:kv_handoffs_total", outcome="ready") == 3
        assert 0 < found.value("antiphon:kv_store_seconds_total") < 3
        assert found.value("antiphon:kv_handoff_seconds_count", edge="cache") == 3
        assert found.value("antiphon:kv_held_blocks") == 0


async def test_two_engines_of_one_answer_can_be_told_apart() -> None:
    """vLLM has a label `stage` of its own where caches are loaded."""
    async with AsyncOmni("split", deployment=Deployment(metrics=True)) as omni:
        peaks = Peaks(omni)
        await omni.generate(OmniRequest(text="What is the capital of France?"))
        found = await peaks.look()
        for stage in ("prefill", "decode"):
            assert found.value("vllm:request_success_total", stage=stage, replica="0") == 1
        loading = {"stage": "decode", "exported_stage": "in_progress"}
        assert found.find("vllm:num_requests_kv_fetch_by_stage", **loading) == [0]
        assert found.value("vllm:external_prefix_cache_hits_total", stage="decode") > 0
        await omni.inspect()
