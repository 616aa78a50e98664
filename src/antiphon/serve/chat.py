"""`/v1/chat/completions`: asked in text and sound, answered in text and sound."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from antiphon.errors import AntiphonError, ShutdownError
from antiphon.orchestrator.api import AudioChunk, Finished, OmniEvent, OmniRequest, Reply, TextDelta
from antiphon.serve import sound_out
from antiphon.serve.calls import REQUEST_ID, deadline_s, trace_headers, until_disconnect
from antiphon.serve.chat_input import Context, omni_request
from antiphon.serve.chat_output import (
    AudioObject,
    ChoiceObject,
    Chunks,
    Completion,
    MessageObject,
    extra,
    finish_reason,
    usage_of,
)
from antiphon.serve.chat_protocol import ChatRequest
from antiphon.serve.errors import ApiError
from antiphon.serve.past_answers import PastAnswers
from antiphon.serve.service import Service, new_id
from antiphon.serve.sse import DONE, MEDIA_TYPE, EventStream, error_event
from antiphon.serve.stop_strings import until_stop

_ABORTED = 499
"""No HTTP status of a standard; servers use it for calls that were ended from outside, and clients
do not try again."""

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer: an object, or with `stream` chunks of it as events.",
        "content": {"application/json": {}, MEDIA_TYPE: {}},
    },
    404: {"description": "The model is not served here."},
    429: {"description": "As many requests wait as may."},
    _ABORTED: {"description": "The call was ended by `/admin/abort`."},
    503: {"description": "The server does not serve (yet, or any more)."},
    504: {"description": "The call's deadline has passed."},
}


def chat_router(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["chat"])
    past = PastAnswers()

    @router.post("/v1/chat/completions", response_class=Response, responses=_RESPONSES)
    async def create(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        service.require_serving()
        service.check_model(body.model)
        context = Context(
            new_id("chatcmpl"),
            deadline_s(request.headers, service.settings),
            trace_headers(request.headers),
        )
        asked = await until_disconnect(
            request,
            omni_request(body, context, service.omni.topology, past, service.settings.max_audio_s),
        )
        answer = Answer(service, body, asked, past, context.request_id, int(time.time()))
        headers = {REQUEST_ID: answer.id}
        if not body.stream:
            whole = await until_disconnect(request, answer.whole())
            return Response(whole, headers=headers, media_type="application/json")
        chunks = answer.chunks()
        # What is refused is refused with a status: nothing is sent before there is an answer.
        first = await until_disconnect(request, anext(chunks))
        return EventStream(first, chunks, headers)

    return router


@dataclass(slots=True)
class Answer:
    """The answer to one call."""

    service: Service
    body: ChatRequest
    request: OmniRequest
    past: PastAnswers
    id: str
    created: int  # Unix seconds

    async def whole(self) -> bytes:
        """All of it. Raises what the request fails with."""
        reply = None
        async with contextlib.aclosing(self._events()) as events:
            async for event in events:
                if isinstance(event, Finished):
                    reply = event.reply
        if reply is None:
            raise _no_outcome()
        return Completion(
            id=self.id,
            created=self.created,
            model=self.service.model,
            choices=(ChoiceObject(await self._message(reply), finish_reason(reply)),),
            usage=usage_of(reply.usage),
            antiphon=extra(reply) if self.body.timeline else UNSET,
        ).to_json()

    async def _message(self, reply: Reply) -> MessageObject:
        if self.body.sound is None:
            return MessageObject(reply.text)
        id = self.past.new_id()
        data = await sound_out.encode_base64(
            self.body.sound.format, reply.audio, reply.sample_rate
        )
        audio = AudioObject(id, data, self.past.keep(id, reply.text), reply.text)
        return MessageObject(None, audio)

    async def chunks(self) -> AsyncGenerator[bytes]:
        """It as events, as it comes.

        Raises what the request fails with if nothing has come by then; a later failure is the last
        event.
        """
        begun = False
        try:
            async with contextlib.aclosing(self._written()) as parts:
                async for part in parts:
                    yield part
                    begun = True
        except (AntiphonError, ApiError) as error:
            if not begun:
                raise
            yield error_event(error)
