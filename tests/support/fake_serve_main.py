"""`serve` over fake stages as a process: its thinker gives one word and ends when it is told to.

Lines on standard input: `finish` ends every call that runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from antiphon import AsyncOmni
from antiphon.orchestrator.clients import OnEvent, OnGone
from antiphon.serve.run import bind, serve
from antiphon.serve.service import Service
from antiphon.serve.settings import ServeSettings
from antiphon.stage.messages import Command, Submit
from antiphon.stage.spec import StageSpec
from antiphon.testing.fake_stage import FakeStage
from fake_server import FAKE, READY

stages: dict[str, FakeStage] = {}


def make_client(spec: StageSpec, on_event: OnEvent, on_gone: OnGone) -> FakeStage:
    stage = stages[spec.name] = FakeStage(spec.name, on_event, on_gone)

    def on_command(command: Command) -> None:
        if isinstance(command, Submit):
            asyncio.get_running_loop().call_soon(stage.tokens, command.uid, 1)
        elif stage.pending_aborts:
            asyncio.get_running_loop().call_soon(stage.acknowledge)

    stage.on_command = on_command
    stage.emit(READY)
    return stage


async def finish_when_told() -> None:
    while await asyncio.to_thread(sys.stdin.readline) == "finish\n":
        for uid in list(stages["thinker"].live):
            stages["thinker"].finish(uid)


async def main() -> None:
    settings = ServeSettings(port=0, drain_timeout_s=float(sys.argv[1]))
    omni = AsyncOmni(FAKE, make_client=make_client)
    told = asyncio.ensure_future(finish_when_told())
    await serve(
        Service(omni, settings),
        bind(settings.host, 0),
        lambda line: print(line, file=sys.stderr, flush=True),
        contextlib.nullcontext(),
    )
    told.cancel()


asyncio.run(main())
