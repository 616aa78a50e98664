"""One answer: text as it is produced, sound into a file or a pipe, pictures into files, timings on
stderr.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Protocol

from rich.console import Console

from antiphon.cli.pipe import PipeWriter
from antiphon.cli.table import timings_table
from antiphon.errors import ShutdownError, StageError
from antiphon.orchestrator.api import (
    AudioChunk,
    Finished,
    OmniEvent,
    OmniRequest,
    Reply,
    TextDelta,
    TranscriptDelta,
)
from antiphon.orchestrator.wav import pcm16


class Answering(Protocol):
    """What answers: an `AsyncOmni`, or a stand-in for it."""

    def stream(self, request: OmniRequest) -> AsyncGenerator[OmniEvent]: ...


async def answer(
    omni: Answering,
    request: OmniRequest,
    out: Path | None,
    sound: PipeWriter | None = None,
    *,
    picture: Path | None = None,
    pictures_before: int = 0,
) -> Reply:
    """Show the answer to a request; raises what the request fails with.

    The text goes to stdout; what was heard, if that is asked for, to stderr. With `sound`, 16-bit
    samples are written there as they come, and the text goes to stderr; BrokenPipeError, once the
    listener has gone, ends the request. The file appears after the last of the sound, complete; a
    listener may still be behind then. Pictures go to `picture` and its numbered neighbours, counted
    on from `pictures_before`; an answer without any raises StageError.
    """
    try:
        reply = await _follow(omni, request, sound)
        console = Console(stderr=True, highlight=False)
        if out is not None:
            reply.save(out)
            console.print(f"wrote {out} ({reply.timings.audio_s:.1f} s)", markup=False)
        if picture is not None:
            _save_pictures(reply, picture, pictures_before, console)
        console.print(timings_table(reply.timings))
        if sound is not None:
            await sound.drain()
    finally:
        if sound is not None:
            sound.drop()  # an answer that was broken off is not played to its end
    return reply


def _save_pictures(reply: Reply, picture: Path, before: int, console: Console) -> None:
    if not reply.images:
        raise StageError("the pipeline made no picture for this; ask for something else")
    for index, image in enumerate(reply.images):
        file = numbered(picture, before + index)
        reply.save_image(file, index)
        height, width, _ = image.shape
        console.print(f"wrote {file} ({width} x {height})", markup=False)


async def _follow(omni: Answering, request: OmniRequest, sound: PipeWriter | None) -> Reply:
    shown = sys.stdout if sound is None else sys.stderr
    reply: Reply | None = None
    on_a_line = False
    heard = ""
    try:
        async with contextlib.aclosing(omni.stream(request)) as events:
            async for event in events:
                if heard and not isinstance(event, TranscriptDelta):
                    print(f"heard: {printable(heard)}", file=sys.stderr, flush=True)
                    heard = ""
                match event:
                    case TranscriptDelta(text):
                        heard += text  # it is complete before the answer to it begins
                    case TextDelta(text):
                        shown.write(printable(text))
                        shown.flush()
                        on_a_line = True
                    case AudioChunk(samples) if sound is not None:
                        sound.write(pcm16(samples))
                    case Finished(reply):
                        pass
    finally:
        if on_a_line:
            print(file=shown, flush=True)
    if reply is None:
        raise ShutdownError("the pipeline closed before the answer was complete; ask again")
    return reply


def printable(text: str) -> str:
    """`text` without control characters, which a model could otherwise send to the terminal."""
    return "".join(c for c in text if c in "\n\t" or c.isprintable())


def numbered(out: Path, index: int) -> Path:
    """The file of a turn or picture of a conversation, counted from 0: reply.wav, reply-2.wav, …"""
    return out if index == 0 else out.with_name(f"{out.stem}-{index + 1}{out.suffix}")
