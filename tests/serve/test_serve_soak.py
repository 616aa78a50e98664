"""Many callers for a while, who go away and interrupt at random: nothing is left of them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx2
import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect

from antiphon.connector.runs import shm_directory
from live_server import LiveServer

CALLERS = 64
SECONDS = float(os.environ.get("ANTIPHON_SOAK_S", "60"))
QUESTIONS = (
    "What is the capital of France?",
    "Name three rivers.",
    "Why is the sky blue?",
    "Tell me about the ocean.",
)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with LiveServer("--admin", "--max-queued", "32") as server:
        yield server


async def _call(client: httpx2.AsyncClient, rng: random.Random, outcomes: Counter[str]) -> None:
    """One call, which ends in one of the ways that there are."""
    patience = rng.expovariate(1 / 3) if rng.random() < 0.5 else 120.0
    body: dict[str, object] = {"model": "voice", "max_completion_tokens": 24, "stream": True}
    path = "/v1/chat/completions"
    match rng.randrange(3):
        case 0:
            body["messages"] = [{"role": "user", "content": rng.choice(QUESTIONS)}]
        case 1:
            body["messages"] = [{"role": "user", "content": rng.choice(QUESTIONS)}]
            body |= {
                "modalities": ["text", "audio"],
                "audio": {"voice": "alloy", "format": "pcm16"},
            }
        case _:
            path = "/v1/audio/speech"
            body = {
                "model": "voice",
                "input": rng.choice(QUESTIONS),
                "voice": "alloy",
                "response_format": "pcm",
            }
    try:
        async with asyncio.timeout(patience), client.stream("POST", path, json=body) as answer:
            last = b""
            async for part in answer.aiter_bytes():
                last = part
            if answer.status_code == 200:
                whole = path.endswith("speech") or b"[DONE]" in last
                outcomes["whole" if whole else "cut short"] += 1
            else:
                outcomes[str(answer.status_code)] += 1
                await asyncio.sleep(float(answer.headers.get("retry-after", "0")) / 4)
    except TimeoutError:
        outcomes["went away"] += 1


async def _converse(url: str, rng: random.Random, outcomes: Counter[str]) -> None:
    """A conversation of one answer, which half of the callers interrupt."""
    patience = rng.expovariate(1 / 3) if rng.random() < 0.3 else 120.0
    modality = rng.choice(("text", "audio"))
    session = {"type": "realtime", "output_modalities": [modality], "max_output_tokens": 24}
    content = [{"type": "input_text", "text": rng.choice(QUESTIONS)}]
    item = {"type": "message", "role": "user", "content": content}
    address = url.replace("http", "ws", 1) + "/v1/realtime?model=voice"
    try:
        async with asyncio.timeout(patience), connect(address, max_size=None) as connection:
            await _tell(connection, {"type": "session.update", "session": session})
            await _tell(connection, {"type": "conversation.item.create", "item": item})
            await _tell(connection, {"type": "response.create"})
            interrupting = None
            if rng.random() < 0.5:
                interrupting = asyncio.ensure_future(_interrupt(connection, rng.expovariate(1)))
            try:
                response = (await _events(connection, "response.done"))[-1]["response"]
            finally:
                if interrupting is not None:
                    interrupting.cancel()
            # Whatever belonged to the answer would come before this is answered.
            await _tell(connection, {"type": "session.update", "session": {"type": "realtime"}})
            for event in await _events(connection, "session.updated"):
                assert not event["type"].startswith("response."), event
            outcomes[_end_of(response)] += 1
    except TimeoutError:
        outcomes["went away"] += 1


async def _interrupt(connection: ClientConnection, after_s: float) -> None:
    await asyncio.sleep(after_s)
    await _tell(connection, {"type": "response.cancel"})


async def _tell(connection: ClientConnection, event: dict[str, Any]) -> None:
    await connection.send(json.dumps(event))


async def _events(connection: ClientConnection, last: str) -> list[dict[str, Any]]:
    """What comes up to the first event of this type; none is an error but a late interruption."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != last:
        events.append(json.loads(await connection.recv()))
        if events[-1]["type"] == "error":
            assert events[-1]["error"]["code"] == "response_cancel_not_active", events[-1]
    return events


def _end_of(response: dict[str, Any]) -> str:
    match response["status"]:
        case "completed" | "incomplete":  # the latter has had as many tokens as may be
            return "whole"
        case "cancelled":
            return "interrupted"
        case _:
            code = response["status_details"]["error"]["code"]
            return "429" if code == "overloaded" else str(code)


async def _watch(client: httpx2.AsyncClient, until: float, seen: Counter[int]) -> None:
    while time.monotonic() < until:
        seen[(await client.get("/health", timeout=20)).status_code] += 1
        await asyncio.sleep(0.5)


async def _load(url: str, seconds: float, seed: int) -> tuple[Counter[str], Counter[int]]:
    outcomes: Counter[str] = Counter()
    health: Counter[int] = Counter()
    until = time.monotonic() + seconds
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=120, limits=limits) as client:

        async def caller(number: int) -> None:
            rng = random.Random(f"{seed}-{number}")
            while time.monotonic() < until:
                if rng.randrange(4):
                    await _call(client, rng, outcomes)
                else:
                    await _converse(url, rng, outcomes)

        await asyncio.gather(_watch(client, until, health), *map(caller, range(CALLERS)))
    return outcomes, health


def _memory(server: LiveServer) -> dict[str, float]:
    """Private memory in MiB: of the server, and of its stages together."""
    process = psutil.Process(server.process.pid)
    stages = [child.memory_full_info().uss for child in process.children(recursive=True)]
    return {"server": process.memory_full_info().uss / 2**20, "stages": sum(stages) / 2**20}


def _idle(server: LiveServer) -> dict[str, dict[str, int]]:
    """What the stages hold, once they have come to rest."""
    due = time.monotonic() + 60
    while True:
        found: dict[str, dict[str, int]] = httpx2.get(
            server.url + "/admin/inspect", timeout=20
        ).json()
        if all(stage["requests"] == 0 for stage in found.values()):
            return found
        assert time.monotonic() < due, found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_callers_who_come_and_go(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """C2, C50, C66, C82: each call has one outcome, and then the server is as it was."""
    asyncio.run(_load(server.url, 15, seed=1))  # caches and pools have their size then
    _idle(server)
    shared = set(shm_directory().iterdir())
    before = _memory(server)

    outcomes, health = asyncio.run(_load(server.url, SECONDS, seed=2))

    held = _idle(server)
    after = _memory(server)
    with capsys.disabled():
        print(f"\n{dict(outcomes)} health {dict(health)} MiB {before} -> {after}")
    assert health.keys() == {200}
    assert outcomes.keys() <= {"whole", "interrupted", "went away", "429"}
    assert outcomes["whole"] > 20
    assert outcomes["went away"] > 20
    assert outcomes["interrupted"] > 5
    for stage in held.values():
        assert (stage["gated"], stage["worker_requests"], stage["connector_entries"]) == (0, 0, 0)
        assert stage["free_blocks"] == stage["total_blocks"] - 1  # vLLM's null block
    assert after["server"] < before["server"] + 16
    # Kernels are kept per shape: this levels off after some minutes.
    assert after["stages"] < before["stages"] + 160
    assert len(set(shm_directory().iterdir()) - shared) <= 4  # kept segments
    metrics = httpx2.get(server.url + "/metrics", timeout=20).text
    values = dict(
        line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith("antiphon:requests")
    )
    assert values, metrics[:500]
    for name, value in values.items():
        if name.startswith(("antiphon:requests_running", "antiphon:requests_waiting")):
            assert float(value) == 0, name
