"""The voice pipeline streams: audio leaves while the thinker writes, and is the same as without."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

from antiphon import (
    AsyncOmni,
    AudioChunk,
    Deployment,
    EdgeDeployment,
    Finished,
    OmniEvent,
    OmniRequest,
    Reply,
    TextDelta,
)
from antiphon.core.continuity import CONTINUITY_LIMIT_S

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

THREE = OmniRequest(text="Where is Paris? Where is Rome? Where is Madrid?")  # three sentences
ROUNDS = 5


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def whole() -> AsyncIterator[AsyncOmni]:
    """The same pipeline with full edges."""
    full = EdgeDeployment(mode="full")
    deployment = Deployment(edges={"speak": full, "codes": full})
    async with AsyncOmni("voice", deployment=deployment, inputs=("text",)) as o:
        yield o


async def events_of(omni: AsyncOmni, request: OmniRequest) -> list[OmniEvent]:
    return [event async for event in omni.stream(request)]


async def test_audio_leaves_while_the_thinker_writes(voice: AsyncOmni) -> None:
    events = await events_of(voice, OmniRequest(text="Tell me about the ocean."))
    first_audio = next(i for i, e in enumerate(events) if isinstance(e, AudioChunk))
    last_text = max(i for i, e in enumerate(events) if isinstance(e, TextDelta))
    assert first_audio < last_text
    chunks = [e for e in events if isinstance(e, AudioChunk)]
    assert len(chunks) > 1 + max(chunk.part for chunk in chunks)  # parts come in several pieces
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.reply.audio is not None
    assert np.array_equal(np.concatenate([c.samples for c in chunks]), finished.reply.audio)
    assert finished.reply.timings.continuity is not None
    assert finished.reply.timings.continuity.chunks == len(chunks)


async def test_edges_tell_what_is_under_way(voice: AsyncOmni) -> None:
    """Every edge counts, and nothing stays when nobody asks for anything."""
    before = await voice.inspect()
    await voice.generate(OmniRequest(text="Where is Paris?"))
    after = await voice.inspect()
    for stage, edge in (("thinker", "speak"), ("talker", "codes")):
        counts = after[stage].edges[edge]
        assert counts.chunks == 0
        assert counts.sent > before[stage].edges[edge].sent
        assert counts.sent == counts.returned + counts.dropped
    assert after["code2wav"].gate is not None
    assert after["code2wav"].gate.blocked == 0


@pytest.mark.slow
async def test_streamed_is_what_is_made_at_once(voice: AsyncOmni, whole: AsyncOmni) -> None:
    """C18, C22: the same text, and the same sound to the sample."""
    for text in (THREE.text, "What is the capital of France?", "Count to ten."):
        streamed = await voice.generate(OmniRequest(text=text))
        full = await whole.generate(OmniRequest(text=text))
        assert streamed.text == full.text
        assert streamed.audio is not None
        assert full.audio is not None
        assert streamed.audio.shape == full.audio.shape
        assert float(np.abs(streamed.audio - full.audio).max()) < 1e-4


@pytest.mark.slow
async def test_batched_streams_sound_as_alone(voice: AsyncOmni) -> None:
    """C17, C28: eight at once, each with its own words and nobody else's."""
    texts = [f"Where is {place}?" for place in ("Paris", "Rome", "Madrid", "London")] * 2
    alone = {text: await voice.generate(OmniRequest(text=text)) for text in set(texts)}
    together = await asyncio.gather(*(voice.generate(OmniRequest(text=text)) for text in texts))
    for text, reply in zip(texts, together, strict=True):
        assert reply.text == alone[text].text
        assert reply.audio is not None
        assert alone[text].audio is not None
        assert reply.audio.shape == alone[text].audio.shape


def first_audio(replies: list[Reply]) -> float:
    """Median seconds to the first audio."""
    return statistics.median(reply.timings.ttfa_s or 0.0 for reply in replies)


async def at_once(omni: AsyncOmni, count: int) -> list[Reply]:
    return list(await asyncio.gather(*(omni.generate(THREE) for _ in range(count))))


@pytest.mark.slow
async def test_the_first_sound_comes_early(voice: AsyncOmni, whole: AsyncOmni) -> None:
    """Streaming: at most 0.35 of the time that full edges take, for a three-sentence answer."""
    ratios = []
    await at_once(voice, 1)
    await at_once(whole, 1)
    for _ in range(ROUNDS):
        streamed = first_audio(await at_once(voice, 1))
        ratios.append(streamed / first_audio(await at_once(whole, 1)))
    print(f"stream / full: {[round(ratio, 2) for ratio in ratios]}")
    assert statistics.median(ratios) <= 0.35


@pytest.mark.slow
async def test_the_first_sound_comes_early_for_four_at_once(voice: AsyncOmni) -> None:
    """At most 2.5 times what one alone waits."""
    ratios = []
    await at_once(voice, 4)
    for _ in range(ROUNDS):
        alone = first_audio(await at_once(voice, 1))
        ratios.append(first_audio(await at_once(voice, 4)) / alone)
    print(f"four / one: {[round(ratio, 2) for ratio in ratios]}")
    assert statistics.median(ratios) <= 2.5


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
async def test_playback_has_no_gap(voice: AsyncOmni, count: int) -> None:
    """C76, C79: nothing runs dry after the first chunk; one round may meet a busy machine."""
    worst = []
    await at_once(voice, count)
    for _ in range(ROUNDS):
        reports = [reply.timings.continuity for reply in await at_once(voice, count)]
        worst.append(max(report.worst_underrun_s for report in reports if report is not None))
    print(f"worst gaps: {[round(seconds, 2) for seconds in worst]} s")
    assert sorted(worst)[-2] <= CONTINUITY_LIMIT_S
