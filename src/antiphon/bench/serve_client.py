"""The caller: speaks OpenAI's HTTP API over real sockets and takes down what comes.

aiohttp, as in vLLM's own benchmark: of Python's clients it takes least of the processor, which
server and callers share on one machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from antiphon.bench.serve_answer import (
    Answer,
    AnswerError,
    AnswerMeter,
    Ending,
    clock,
    num_bytes,
    one_line,
)
from antiphon.bench.serve_call import Call, Endpoint
from antiphon.bench.serve_prompts import Prompt
from antiphon.bench.serve_realtime import converse
from antiphon.bench.serve_sse import DONE, EventParser, chat_chunks, error_bodies

_KEEP_ALIVE_S = 3.0  # less than servers have, which would close under a call
_EVENTS = "text/event-stream"
PATHS = {Endpoint.CHAT: "/v1/chat/completions", Endpoint.SPEECH: "/v1/audio/speech"}


class Client:
    """Entered for the time of a run; connections are used again, which `tracing` can watch."""

    def __init__(self, call: Call, tracing: Sequence[aiohttp.TraceConfig] = ()) -> None:
        self._call = call
        self._tracing = list(tracing)
        ways: dict[Endpoint, Callable[[Prompt, AnswerMeter], Awaitable[None]]] = {
            Endpoint.CHAT: self._chat,
            Endpoint.SPEECH: self._speech,
            Endpoint.REALTIME: self._realtime,
        }
        self._way = ways[call.endpoint]
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        key = self._call.api_key
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None),  # `ask` has its own
            trace_configs=self._tracing,
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def ask(self, prompt: Prompt, leave_after_s: float | None = None) -> Answer:
        """One call, to its end, or until the caller leaves by closing its connection.

        Whatever the server does is part of the answer; raises nothing for it.
        """
        meter = AnswerMeter(clock())
        timeout_s = self._call.timeout_s if leave_after_s is None else leave_after_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._way(prompt, meter)
        except TimeoutError:
            if leave_after_s is not None:
                return meter.answer(Ending.DISCONNECTED, clock())
            return meter.answer(Ending.FAILED, clock(), f"no end after {timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return meter.answer(Ending.FAILED, clock(), one_line(error))
        except AnswerError as error:
            return meter.answer(Ending.FAILED, clock(), str(error))
        return meter.answer(Ending.COMPLETED, clock())

    def _post(
        self, endpoint: Endpoint, body: dict[str, Any]
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._session.post(self._call.url + PATHS[endpoint], json=body)

    async def _chat(self, prompt: Prompt, meter: AnswerMeter) -> None:
        body = chat_body(self._call, prompt)
        whole = False
        async with self._post(Endpoint.CHAT, body) as response:
            await _check(response, _EVENTS)
            parser = EventParser()
            # To the end of the body, so that the connection can be used again.
            async for received in response.content.iter_any():
                at_s = clock()
                for data in parser.feed(received):
                    if data == DONE:
                        whole = True
                    else:
                        _take(data, meter, at_s)
        if not whole:
            raise AnswerError("the stream ended before [DONE]")

    async def _speech(self, prompt: Prompt, meter: AnswerMeter) -> None:
        body = speech_body(self._call, prompt)
        heard = False
        async with self._post(Endpoint.SPEECH, body) as response:
            await _check(response, "audio/")
            async for received in response.content.iter_any():
                meter.audio(len(received), clock())
                heard = True
        if not heard:
            raise AnswerError("the answer has no sound")

    async def _realtime(self, prompt: Prompt, meter: AnswerMeter) -> None:
        await converse(self._session, self._call, prompt, meter)


def chat_body(call: Call, prompt: Prompt) -> dict[str, Any]:
    """Of /v1/chat/completions. What is not asked for is left to the server."""
    body: dict[str, Any] = {
        "model": call.model,
        "messages": msgspec.to_builtins(prompt.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if (max_tokens := call.longest(prompt)) is not None:
        body["max_completion_tokens"] = max_tokens
    if call.temperature is not None:
        body["temperature"] = call.temperature
    if call.ignore_eos and call.text_stage is None:
        body["ignore_eos"] = True
    elif call.ignore_eos:
        body["sampling"] = {call.text_stage: {"ignore_eos": True}}
    if "audio" in call.modalities:
        body["modalities"] = list(call.modalities)
        voice = {} if call.voice is None else {"voice": call.voice}
        body["audio"] = {"format": "pcm16", **voice}
    return body | call.extra_body


def speech_body(call: Call, prompt: Prompt) -> dict[str, Any]:
    """Of /v1/audio/speech."""
    body = {"model": call.model, "input": prompt.text, "response_format": "pcm"}
    if call.voice is not None:
        body["voice"] = call.voice
    return body | call.extra_body


def _take(data: bytes, meter: AnswerMeter, at_s: float) -> None:
    """One event of a chat's stream. Raises AnswerError for an error and for what is none of it."""
    try:
        chunk = chat_chunks.decode(data)
    except msgspec.DecodeError as error:
        raise AnswerError(f"an event is not of a chat completion: {error}") from error
    if chunk.error is not None:
        raise AnswerError(f"in the stream: {one_line(chunk.error.message)}")
    if chunk.usage is not None:
        meter.usage(chunk.usage)
    for choice in chunk.choices:
        delta = choice.delta
        meter.text(delta.content or delta.reasoning or "", at_s)
        if delta.audio is not None:
            meter.text(delta.audio.transcript or "", at_s)
            meter.audio(num_bytes(delta.audio.data or ""), at_s)


async def _check(response: aiohttp.ClientResponse, media_type: str) -> None:
    """Raise AnswerError unless the answer is what was asked for."""
    if response.status != 200:
        body = await response.read()
        try:
            message = error_bodies.decode(body).error.message
        except msgspec.DecodeError:
            message = response.reason or ""
        raise AnswerError(f"HTTP {response.status}: {one_line(message)}")
    if not response.content_type.startswith(media_type):
        raise AnswerError(f"the answer is {response.content_type}, not {media_type}")
