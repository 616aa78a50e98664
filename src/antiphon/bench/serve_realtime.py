"""One question and its answer over `/v1/realtime`, with OpenAI's event names.

Each call has a connection of its own; its time begins with the question, when the session is there.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec

from antiphon.bench.serve_answer import (
    SAMPLE_RATE,
    AnswerError,
    AnswerMeter,
    clock,
    num_bytes,
    one_line,
)
from antiphon.bench.serve_call import Call
from antiphon.bench.serve_prompts import Message, Prompt
from antiphon.bench.serve_sse import Failure, TokenDetails, Usage

PATH = "/v1/realtime"
_TEXT = frozenset({"response.output_text.delta", "response.output_audio_transcript.delta"})
_SOUND = "response.output_audio.delta"


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int = 0
    output_tokens: int = 0
    output_token_details: TokenDetails | None = None


class _StatusDetails(msgspec.Struct, frozen=True):
    error: Failure | None = None
    reason: str | None = None


class _Response(msgspec.Struct, frozen=True):
    status: str = ""
    status_details: _StatusDetails | None = None
    usage: _Usage | None = None


class _Event(msgspec.Struct, frozen=True):
    """Of the server, whichever; `delta` is text or base64."""

    type: str
    delta: str = ""
    response: _Response | None = None
    error: Failure | None = None


_events = msgspec.json.Decoder(_Event)


async def converse(
    session: aiohttp.ClientSession, call: Call, prompt: Prompt, meter: AnswerMeter
) -> None:
    """Raises AnswerError for what is no whole answer, aiohttp's errors for a lost connection."""
    address = f"{call.url}{PATH}?{urlencode({'model': call.model})}"
    async with session.ws_connect(address, max_msg_size=0) as socket:
        await _until(socket, "session.created")
        await socket.send_json({"type": "session.update", "session": _session(call)})
        await _until(socket, "session.updated")
        meter.begin(clock())
        for message in prompt.messages:
            await socket.send_json({"type": "conversation.item.create", "item": _item(message)})
        await socket.send_json({"type": "response.create", "response": _response(call, prompt)})
        while (event := await _next(socket)).type != "response.done":
            at_s = clock()
            if event.type in _TEXT:
                meter.text(event.delta, at_s)
            elif event.type == _SOUND:
                meter.audio(num_bytes(event.delta), at_s)
        _take_end(event.response or _Response(), meter)


def _session(call: Call) -> dict[str, Any]:
    modality = "audio" if "audio" in call.modalities else "text"
    session: dict[str, Any] = {"type": "realtime", "output_modalities": [modality]}
    if modality == "audio":
        output: dict[str, Any] = {"format": {"type": "audio/pcm", "rate": SAMPLE_RATE}}
        if call.voice is not None:
            output["voice"] = call.voice
        session["audio"] = {"output": output}
    return session


def _item(message: Message) -> dict[str, Any]:
    kind = "output_text" if message.role == "assistant" else "input_text"
    content = [{"type": kind, "text": message.content}]
    return {"type": "message", "role": message.role, "content": content}


def _response(call: Call, prompt: Prompt) -> dict[str, Any]:
    max_tokens = call.longest(prompt)
    limit = {} if max_tokens is None else {"max_output_tokens": max_tokens}
    return limit | call.extra_body


async def _until(socket: aiohttp.ClientWebSocketResponse, kind: str) -> None:
    while (await _next(socket)).type != kind:
        pass


async def _next(socket: aiohttp.ClientWebSocketResponse) -> _Event:
    message = await socket.receive()
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise AnswerError(f"the connection ended before the answer (code {socket.close_code})")
    try:
        event = _events.decode(message.data)
    except msgspec.DecodeError as error:
        raise AnswerError(f"an event is not of a realtime session: {error}") from error
    if event.type == "error":
        raise AnswerError(one_line((event.error or Failure()).message))
    return event


def _take_end(response: _Response, meter: AnswerMeter) -> None:
    """Raises AnswerError unless it is whole, or as long as it may be."""
    if response.status not in ("completed", "incomplete"):
        details = response.status_details or _StatusDetails()
        why = details.reason if details.error is None else details.error.message
        raise AnswerError(f"the response is {response.status}: {one_line(why or 'no reason')}")
    if (usage := response.usage) is not None:
        meter.usage(Usage(usage.input_tokens, usage.output_tokens, usage.output_token_details))
