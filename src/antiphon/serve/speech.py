"""`/v1/audio/speech`: a text, spoken as it is."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET, UnsetType
from pydantic import Field
from starlette.responses import Response

from antiphon.errors import StageError
from antiphon.orchestrator.api import AudioChunk, Finished, OmniRequest, Reply
from antiphon.pipeline.topology import Entry
from antiphon.serve.answers import Tokens, begun, cut_off, events_of, responses
from antiphon.serve.calls import call_id, deadline_s, trace_headers, until_disconnect
from antiphon.serve.chat_output import Extra, extra
from antiphon.serve.endpoints import entry_for
from antiphon.serve.errors import REQUEST_ID, wrong
from antiphon.serve.service import Service
from antiphon.serve.sound_out import Encoder, feed, finish, make_encoder
from antiphon.serve.sse import MEDIA_TYPE, error_event, event
from antiphon.serve.streamed import Streamed
from antiphon.serve.strict import Extended, Text, Voiced
from antiphon.serve.voices import voice_params

ENTRY = "speech"
INSTRUCT = ("instructions", "instruct")
"""What entries call the parameter that says how to speak."""

Format = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]


class SpeechRequest(Voiced, Extended):
    """A text to be spoken."""

    model: Annotated[str, Field(max_length=256)]
    input: Text
    response_format: Format = "mp3"
    speed: Annotated[float, Field(ge=0.25, le=4)] = 1.0
    instructions: Text | None = None
    stream_format: Literal["audio", "sse"] = "audio"

    # An extension, as those of `Extended`.
    timeline: bool = Field(
        default=False,
        description="Whether the last event tells when what happened; with sse alone.",
    )


class AudioDelta(msgspec.Struct, frozen=True):
    """The next bytes of the file."""

    audio: str  # base64
    type: str = "speech.audio.delta"


class AudioDone(msgspec.Struct, frozen=True):
    """The file is whole."""

    usage: Tokens  # of the stage that the text enters at
    antiphon: Extra | UnsetType = UNSET
    type: str = "speech.audio.done"


_RESPONSES = responses(
    "The sound in chunks, as it is made; with `sse` as events.", "audio/*", MEDIA_TYPE
)


def speech_router(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["audio"])

    @router.post("/v1/audio/speech", response_class=Response, responses=_RESPONSES)
    async def create(body: SpeechRequest, request: Request) -> Response:
        """Speak a text."""
        service.require_serving()
        service.check_model(body.model)
        entry = entry_for(service.omni.topology, ENTRY)
        _check(body, service.settings.max_text_chars)
        id = call_id(request.headers, "speech")
        asked = OmniRequest(
            entry=ENTRY,
            text=body.input,
            modalities=("audio",),
            sampling={name: dict(of) for name, of in body.sampling.items()},
            params={**_params(body, entry), **body.params},
            deadline_s=deadline_s(request.headers, service.settings),
            request_id=id,
            trace_headers=trace_headers(request.headers),
        )
        rate = service.omni.topology.sample_rate
        encoder = make_encoder(body.response_format, rate, streaming=True)
        speech = Speech(service, asked, encoder, body.timeline)
        if body.stream_format == "sse":
            parts, media_type = speech.events(), MEDIA_TYPE
        else:
            parts, media_type = speech.file(), encoder.media_type
        # What is refused is refused with a status: nothing is sent before there is sound.
        first = await until_disconnect(request, anext(parts))
        return Streamed(first, parts, media_type, {REQUEST_ID: id})

    return router


def _check(body: SpeechRequest, max_chars: int) -> None:
    """Raise ApiError for what no pipeline can do."""
    if body.speed != 1:
        reason = "is not 1; other speeds are not supported: leave it out"
        raise wrong("speed", reason, "unsupported_parameter")
    if len(body.input) > max_chars:
        reason = f"has {len(body.input)} characters; give at most {max_chars}"
        raise wrong("input", reason, "input_too_long")
    if body.timeline and body.stream_format == "audio":
        reason = (
            'goes with stream_format "sse"; or ask for /v1/antiphon/traces/ID afterwards, with the'
            f" {REQUEST_ID} of the answer"
        )
        raise wrong("timeline", reason)


def _params(body: SpeechRequest, entry: Entry) -> dict[str, str]:
    """OpenAI's fields as the entry's parameters. Raises ApiError, CallerError as `voice_params`."""
    params = voice_params(entry, body.voice_name)
    if body.instructions:
        name = next((name for name in INSTRUCT if name in entry.params), None)
        if name is None:
            reason = "is not supported: this pipeline's voice takes none; leave it out"
            raise wrong("instructions", reason, "unsupported_parameter")
        params[name] = body.instructions
    return params


@dataclass(frozen=True, slots=True)
class Speech:
    """What comes of one request, in either form; closing it ends the request on every stage."""

    service: Service
    request: OmniRequest
    encoder: Encoder
    timeline: bool

    def file(self) -> AsyncGenerator[bytes]:
        """The file's bytes, as they are ready; the first are there with the first sound.

        Raises what the request fails with, ApiError if it is aborted; later CutOffError.
        """
        return begun(self._file(), cut_off)

    def events(self) -> AsyncGenerator[bytes]:
        """The same as OpenAI's events. Raises as `file`; a later failure is the last event."""
        return begun(self._events(), error_event)

    async def _file(self) -> AsyncGenerator[bytes]:
        async with contextlib.aclosing(self._parts()) as parts:
            async for part in parts:
                if isinstance(part, bytes):
                    yield part

    async def _events(self) -> AsyncGenerator[bytes]:
        first = True  # is sent even without a byte: an encoder may hold its first sound back
        async with contextlib.aclosing(self._parts()) as parts:
            async for part in parts:
                if isinstance(part, Reply):
                    yield event(msgspec.json.encode(self._done(part)))
                elif part or first:
                    delta = AudioDelta(base64.b64encode(part).decode())
                    yield event(msgspec.json.encode(delta))
                    first = False

    async def _parts(self) -> AsyncGenerator[bytes | Reply]:
        """Encoded sound, and the reply at its end. Raises what the request fails with."""
        heard = False
        async with contextlib.aclosing(events_of(self.service, self.request)) as events:
            async for event_ in events:
                match event_:
                    case AudioChunk(samples):
                        heard = True
                        yield await feed(self.encoder, samples)
                    case Finished(reply):
                        if not heard:
                            raise StageError("no sound came of this text; try another")
                        yield await finish(self.encoder)
                        yield reply

    def _done(self, reply: Reply) -> AudioDone:
        return AudioDone(Tokens.of(reply.usage), extra(reply) if self.timeline else UNSET)
