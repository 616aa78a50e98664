"""SmolLM2 goes on behind a special token as it would have undivided, over both connectors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from special_token import MARK, QUESTIONS, rests, topology

from antiphon import AsyncOmni, OmniRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]
HERE = Path(__file__).parent


async def whole_answers() -> dict[str, str]:
    async with AsyncOmni("voice", entries=("chat",), modalities=("text",)) as omni:
        return {
            text: (await omni.generate(OmniRequest(text=text, modalities=("text",)))).text
            for text in QUESTIONS
        }


def check(whole: dict[str, str], rest: dict[str, str]) -> None:
    """What follows the first mark; nothing where there is none."""
    for question, answer in whole.items():
        _, mark, expected = answer.partition(MARK)
        # The second stage has a limit of its own: it may write on where the whole answer ended.
        assert rest[question].strip().startswith(expected.strip()), question
        assert bool(rest[question]) == bool(mark)
    assert sum(bool(text) for text in rest.values()) >= 4


async def test_a_split_behind_a_special_token() -> None:
    """Alone and eight at once: in processes, through shared memory, and in one process."""
    whole = await whole_answers()
    async with AsyncOmni(topology()) as omni:
        check(whole, await rests(omni))
        for name, stage in (await omni.inspect()).items():
            held = (stage.requests, stage.gated, stage.worker_requests, stage.connector_entries)
            assert held == (0, 0, 0, 0), name
            assert stage.free_blocks == stage.total_blocks - 1, name
    own = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    done = subprocess.run(  # noqa: ASYNC221  nothing else runs on this loop
        [sys.executable, str(HERE / "special_token.py")],
        capture_output=True,
        text=True,
        env=own | {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    check(whole, json.loads(done.stdout.splitlines()[-1]))
