"""`/v1/chat/completions`: asked in text and sound, answered in text and sound."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from antiphon.serve.answers import responses
from antiphon.serve.calls import call_id, deadline_s, trace_headers, until_disconnect
from antiphon.serve.chat_answer import Answer
from antiphon.serve.chat_input import Context, omni_request
from antiphon.serve.chat_protocol import ChatRequest
from antiphon.serve.errors import REQUEST_ID
from antiphon.serve.past_answers import PastAnswers
from antiphon.serve.service import Service
from antiphon.serve.sse import MEDIA_TYPE
from antiphon.serve.streamed import Streamed

_RESPONSES = responses(
    "The answer: an object, or with `stream` chunks of it as events.",
    "application/json",
    MEDIA_TYPE,
)


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
            call_id(request.headers, "chatcmpl"),
            deadline_s(request.headers, service.settings),
            trace_headers(request.headers),
        )
        asked = await until_disconnect(
            request,
            omni_request(body, context, service.omni.topology, past, service.settings.max_audio_s),
        )
        answer = Answer(service, body, asked, past, context.request_id, int(time.time()))
        headers = {REQUEST_ID: context.request_id}
        if not body.stream:
            whole = await until_disconnect(request, answer.whole())
            return Response(whole, headers=headers, media_type="application/json")
        chunks = answer.chunks()
        # What is refused is refused with a status: nothing is sent before there is an answer.
        first = await until_disconnect(request, anext(chunks))
        return Streamed(first, chunks, MEDIA_TYPE, headers)

    return router
