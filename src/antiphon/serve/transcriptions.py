"""`/v1/audio/transcriptions`: what a sound says."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from antiphon.core.options import Scalar
from antiphon.errors import AntiphonError, CallerError, ShutdownError
from antiphon.orchestrator.api import Finished, OmniRequest, Reply, TextDelta
from antiphon.pipeline.audio import AudioClip
from antiphon.pipeline.topology import Entry, Topology
from antiphon.serve import sound_in
from antiphon.serve.calls import REQUEST_ID, call_id, deadline_s, trace_headers, until_disconnect
from antiphon.serve.endpoints import entry_for
from antiphon.serve.errors import ABORTED, ApiError, api_error
from antiphon.serve.service import Service
from antiphon.serve.sse import MEDIA_TYPE, error_event, event
from antiphon.serve.streamed import Streamed
from antiphon.serve.transcription_form import FORM_SCHEMA, TranscriptionForm, read_form

ENTRY = "transcribe"


class Duration(msgspec.Struct, frozen=True):
    """What was heard."""

    seconds: float
    type: Literal["duration"] = "duration"


class Tokens(msgspec.Struct, frozen=True):
    """Of the stage that hears."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
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
    usage: Tokens
    type: Literal["transcript.text.done"] = "transcript.text.done"


_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The text: an object, or alone, or with `stream` as events.",
        "content": {"application/json": {}, "text/plain": {}, MEDIA_TYPE: {}},
    },
    404: {"description": "The model is not served here."},
    429: {"description": "As many requests wait as may."},
    ABORTED: {"description": "The call was ended by `/admin/abort`."},
    503: {"description": "The server does not serve (yet, or any more)."},
    504: {"description": "The call's deadline has passed."},
}


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
            raise ApiError(
                400,
                f"{name} is not supported: what hears in this pipeline takes none; leave it out",
                code="unsupported_parameter",
                param=name,
            )
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
        async with contextlib.aclosing(self._events()) as events:
            async for event_ in events:
                if isinstance(event_, Reply):
                    return event_.text
        raise ShutdownError("the request's stream ended without an outcome")

    async def events(self) -> AsyncGenerator[bytes]:
        """OpenAI's events. Closing it ends the request on every stage.

        Raises as `text` if nothing has come by then; a later failure is the last event.
        """
        begun = False
        try:
            async with contextlib.aclosing(self._events()) as events:
                async for event_ in events:
                    yield event(msgspec.json.encode(_shown(event_)))
                    begun = True
        except (AntiphonError, ApiError) as error:
            if not begun:
                raise
            yield error_event(error)

    async def _events(self) -> AsyncGenerator[TextDelta | Reply]:
        async with contextlib.aclosing(self.service.omni.stream(self.request)) as events:
            async for event_ in events:
                match event_:
                    case TextDelta():
                        yield event_
                    case Finished(reply):
                        if reply.finish_reason == "abort":
                            raise ApiError(
                                ABORTED, "the call was ended by an abort", code="request_aborted"
                            )
                        yield reply


def _shown(part: TextDelta | Reply) -> Delta | Done:
    if isinstance(part, TextDelta):
        return Delta(part.text)
    tokens = (part.usage.prompt_tokens, part.usage.completion_tokens)
    return Done(part.text, Tokens(*tokens, sum(tokens)))
