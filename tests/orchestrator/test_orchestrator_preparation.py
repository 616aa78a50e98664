"""Requests whose prompts take their time: nobody else waits, and their deadline holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon import AsyncOmni, OmniRequest
from antiphon.errors import DeadlineExceededError, InputTooLongError, OverloadedError
from antiphon.orchestrator.api import MAX_TEXT_CHARS
from antiphon.orchestrator.clients import OnEvent, OnGone
from antiphon.pipeline.entry import EntryRequest
from antiphon.pipeline.topology import Entry
from antiphon.stage.spec import StageSpec
from antiphon.testing.fake_stage import FakeStage
from fake_server import ANSWERS, FAKE, READY

_go = threading.Event()


class SlowEntry:
    """Texts that say so take until the test lets them go."""

    def __init__(self, checkpoint: Path) -> None: ...

    def prompts(self, request: EntryRequest) -> Sequence[list[int]]:
        if request.text == "slow":
            assert _go.wait(10)
        return [[1]]


SLOW = replace(FAKE, entries=(Entry("chat", "thinker", "test_orchestrator_preparation:SlowEntry"),))


def make_client(spec: StageSpec, on_event: OnEvent, on_gone: OnGone) -> FakeStage:
    stage = FakeStage(spec.name, on_event, on_gone, answer=ANSWERS[spec.name])
    stage.emit(READY)
    return stage


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    _go.clear()
    yield
    _go.set()


@asynccontextmanager
async def running(max_queued: int | None = None) -> AsyncIterator[AsyncOmni]:
    async with AsyncOmni(
        SLOW, make_client=make_client, modalities=["text"], max_queued=max_queued
    ) as omni:
        yield omni
        _go.set()


async def begun() -> None:
    """Tasks that were made have run as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


def text(of: str, deadline_s: float | None = None) -> OmniRequest:
    return OmniRequest(text=of, modalities=("text",), deadline_s=deadline_s)


async def test_the_deadline_counts_from_the_call() -> None:
    async with running() as omni:
        with pytest.raises(DeadlineExceededError, match=r"longer than 0\.1 s"):
            await omni.generate(text("slow", 0.1))


async def test_a_request_counts_while_its_prompt_is_made() -> None:
    async with running(max_queued=0) as omni:
        limit = omni.admission.limit("thinker")
        assert limit is not None
        slow = [asyncio.ensure_future(omni.generate(text("slow"))) for _ in range(limit)]
        await begun()
        assert omni.admission.live("thinker") == limit
        with pytest.raises(OverloadedError):
            await omni.generate(text("quick"))
        _go.set()
        assert {(await reply).finish_reason for reply in slow} == {"stop"}
        assert omni.admission.live("thinker") == 0


async def test_one_that_is_given_up_counts_no_more() -> None:
    async with running(max_queued=0) as omni:
        slow = asyncio.ensure_future(omni.generate(text("slow")))
        await begun()
        assert omni.admission.live("thinker") == 1
        slow.cancel()
        await asyncio.wait([slow])
        assert omni.admission.live("thinker") == 0


async def test_a_text_that_would_take_too_long_to_read() -> None:
    async with running() as omni:
        with pytest.raises(InputTooLongError, match=f"give at most {MAX_TEXT_CHARS}"):
            await omni.generate(text("x" * (MAX_TEXT_CHARS + 1)))
