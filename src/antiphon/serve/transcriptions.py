"""`/v1/audio/transcriptions`: what a sound says."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from antiphon.core.options import Scalar
from antiphon.errors import CallerError
from antiphon.orchestrator.api import Finished, OmniRequest, TextDelta
from antiphon.pipeline.audio import AudioClip
from antiphon.pipeline.topology import Entry, Topology
from antiphon.serve import sound_in
from antiphon.serve.answers import Tokens, begun, events_of, reply_to, responses
from antiphon.serve.calls import call_id, deadline_s, trace_headers, until_disconnect
from antiphon.serve.endpoints import entry_for
from antiphon.serve.errors import REQUEST_ID, api_error, wrong
from antiphon.serve.service import Service
from antiphon.serve.sse import MEDIA_TYPE, error_event, event
from antiphon.serve.streamed import Streamed
from antiphon.serve.transcription_form import FORM_SCHEMA, TranscriptionForm, read_form

ENTRY = "transcribe"


class Duration(msgspec.Struct, frozen=True):
    """What was heard."""

    seconds: float
    type: Literal["duration"] = "duration"


class HeardTokens(Tokens, frozen=True):
    """Of the stage that hears."""

    type: Literal["tokens"] = "tokens"


class Transcription(msgspec.Struct, frozen=True):
    """The whole answer."""

    text: str
    usage: Duration


class Delta(msgspec.Struct, frozen=True):
    """Text that is new."""

    delta: str
    type: Literal["transcript.text.delta"] = "transcript.text.delta"


class Done(msgspec.Struct, frozen=True):
    """The end of the text: all of it."""

    text: str
    usage: HeardTokens
    type: Literal["transcript.text.done"] = "transcript.text.done"


_RESPONSES = responses(
    "The text: an object, or alone, or with `stream` as events.",
    "application/json",
    "text/plain",
    MEDIA_TYPE,
)


def transcription_router(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["audio"])

    @router.post(
        "/v1/audio/transcriptions",
        response_class=Response,
        responses=_RESPONSES,
        openapi_extra={"requestBody": FORM_SCHEMA},
    )
    async def create(request: Request) -> Response:
        """Write down what a sound says."""
        service.require_serving()
        form, file = await read_form(request)
        service.check_model(form.model)
        topology = service.omni.topology
        entry = entry_for(topology, ENTRY)
        id = call_id(request.headers, "transcription")
        params, sampling = _params(form, entry), _sampling(form, entry, topology)
        clip = await until_disconnect(request, _clip(file, service.settings.max_audio_s))
        asked = OmniRequest(
            entry=ENTRY,
            audio=[clip],
            params=params,
            sampling=sampling,
            deadline_s=deadline_s(request.headers, service.settings),
            request_id=id,
            trace_headers=trace_headers(request.headers),
        )
        heard = Heard(service, asked)
        headers = {REQUEST_ID: id}
        if form.stream:
            parts = heard.events()
            first = await until_disconnect(request, anext(parts))
            return Streamed(first, parts, MEDIA_TYPE, headers)
        text = await until_disconnect(request, heard.text())
        if form.response_format == "text":
            return Response(f"{text}\n", headers=headers, media_type="text/plain")
        whole = msgspec.json.encode(Transcription(text, Duration(round(clip.seconds, 3))))
        return Response(whole, headers=headers, media_type="application/json")

    return router


async def _clip(file: bytes, max_s: float) -> AudioClip:
    """The sound of an uploaded file. Raises ApiError."""
    try:
        return await sound_in.decode(file, max_s=max_s, name="file")
    except CallerError as error:
        answer = api_error(error)
        answer.param = "file"
        raise answer from None


def _params(form: TranscriptionForm, entry: Entry) -> dict[str, Scalar]:
    """OpenAI's fields as the entry's parameters. Raises ApiError for one that it does not take."""
    given = {"language": form.language, "prompt": form.prompt}
    params: dict[str, Scalar] = {name: value for name, value in given.items() if value}
    for name in params:
        if name not in entry.params:
            reason = "is not supported: what hears in this pipeline takes none; leave it out"
            raise wrong(name, reason, "unsupported_parameter")
    return params


def _sampling(
    form: TranscriptionForm, entry: Entry, topology: Topology
) -> dict[str, dict[str, object]]:
    """The temperature is for the stage that writes."""
    if form.temperature is None:
        return {}
    stages = topology.downstream(entry.start(heard=True))
    writer = next((s.name for s in stages if s.output in ("transcript", "text")), entry.stage)
    return {writer: {"temperature": form.temperature}}


@dataclass(frozen=True, slots=True)
class Heard:
    """What comes of one request."""

    service: Service
    request: OmniRequest

    async def text(self) -> str:
        """The whole text. Raises what the request fails with, ApiError if it is aborted."""
        return (await reply_to(self.service, self.request)).text

    def events(self) -> AsyncGenerator[bytes]:
        """OpenAI's events. Closing it ends the request on every stage.

        Raises as `text` if nothing has come by then; a later failure is the last event.
        """
        return begun(self._events(), error_event)

    async def _events(self) -> AsyncGenerator[bytes]:
        async with contextlib.aclosing(events_of(self.service, self.request)) as events:
            async for event_ in events:
                match event_:
                    case TextDelta(text):
                        yield event(msgspec.json.encode(Delta(text)))
                    case Finished(reply):
                        done = Done(reply.text, HeardTokens.of(reply.usage))
                        yield event(msgspec.json.encode(done))
