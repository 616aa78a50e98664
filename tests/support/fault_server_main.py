"""`serve` over stages that are real processes without engines, as a process of its own.

The argument is how long open calls may go on after SIGTERM. Lines on standard input are scripts of
requests to begin. Lines on standard output: the stages' process ids once they serve, then the code
of each request that has ended with an error, or "done"; and what the operator is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

import msgspec

from antiphon import AsyncOmni, OmniRequest
from antiphon.core.parent import die_with_parent
from antiphon.errors import AntiphonError
from antiphon.pipeline.deployment import Deployment
from antiphon.serve.run import bind, serve
from antiphon.serve.service import Service
from antiphon.serve.settings import ServeSettings
from fake_server import FAKE
from fault_server import QUICK, SILENCE_S, start_process


def say(**said: object) -> None:
    print(json.dumps(said), flush=True)


async def call(omni: AsyncOmni, script: str) -> None:
    try:
        await omni.generate(OmniRequest(text="one two", params={"speaker": script}))
    except AntiphonError as error:
        say(over=error.code)
    else:
        say(over="done")


async def obey(omni: AsyncOmni) -> None:
    while {s.state for s in omni.stage_states.values()} != {"ready"}:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    say(pids=list(omni.stage_pids.values()))
    calls = []
    while script := (await asyncio.to_thread(sys.stdin.readline)).strip():
        calls.append(asyncio.ensure_future(call(omni, script)))
        await omni.inspect()
        say(begun=len(calls))


async def main() -> None:
    omni = AsyncOmni(
        FAKE,
        deployment=Deployment(supervision=msgspec.structs.replace(QUICK, silence_s=SILENCE_S)),
        make_client=start_process,
        on_notice=lambda line: say(notice=line),
    )
    settings = ServeSettings(port=0, drain_timeout_s=float(sys.argv[1]))
    service = Service(omni, settings)
    listening = bind(settings.host, 0)
    say(port=listening.getsockname()[1])
    obeying = asyncio.ensure_future(obey(omni))
    await serve(service, listening, lambda line: say(said=line), contextlib.nullcontext())
    obeying.cancel()


if __name__ == "__main__":
    die_with_parent()
    asyncio.run(main())
