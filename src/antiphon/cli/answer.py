"""One answer: text on stdout as it is produced, sound into a file, timings on stderr."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from antiphon import AsyncOmni
from antiphon.cli.table import timings_table
from antiphon.errors import ShutdownError
from antiphon.orchestrator.api import Finished, OmniRequest, Reply, TextDelta


async def answer(omni: AsyncOmni, request: OmniRequest, out: Path | None) -> Reply:
    """Show the answer to a request; raises what the request fails with.

    The file appears after the last of the sound, complete.
    """
    reply: Reply | None = None
    on_a_line = False
    try:
        async for event in omni.stream(request):
            match event:
                case TextDelta(text):
                    sys.stdout.write(printable(text))
                    sys.stdout.flush()
                    on_a_line = True
                case Finished(reply):
                    pass
    finally:
        if on_a_line:
            print(flush=True)
    if reply is None:
        raise ShutdownError("the pipeline closed before the answer was complete; ask again")
    console = Console(stderr=True, highlight=False)
    if out is not None:
        reply.save(out)
        console.print(f"wrote {out} ({reply.timings.audio_s:.1f} s)", markup=False)
    console.print(timings_table(reply.timings))
    return reply


def printable(text: str) -> str:
    """`text` without control characters, which a model could otherwise send to the terminal."""
    return "".join(c for c in text if c in "\n\t" or c.isprintable())


def numbered(out: Path, turn: int) -> Path:
    """The file of a turn of a conversation, counted from 0: reply.wav, reply-2.wav, …"""
    return out if turn == 0 else out.with_name(f"{out.stem}-{turn + 1}{out.suffix}")
