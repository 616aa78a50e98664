"""The caller: speaks OpenAI's HTTP API over real sockets and takes down what comes.

aiohttp, as in vLLM's own benchmark: of Python's clients it takes least of the processor, which
server and callers share on one machine.
"""

from __future__ import annotations

import asyncio
import binascii
import enum
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from antiphon.bench.serve_answer import Answer, AnswerMeter, Ending
from antiphon.bench.serve_prompts import Prompt
from antiphon.bench.serve_sse import DONE, EventParser, chat_chunks, error_bodies

_EVENTS = "text/event-stream"
clock = time.perf_counter


class Endpoint(enum.StrEnum):
    """What is called."""

    CHAT = "chat"
    SPEECH = "speech"


PATHS = {Endpoint.CHAT: "/v1/chat/completions", Endpoint.SPEECH: "/v1/audio/speech"}


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What all calls of a run have in common."""

    url: str
    """The server's, without a path."""
    model: str
    endpoint: Endpoint = Endpoint.CHAT
    modalities: tuple[str, ...] = ("text",)
    voice: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    ignore_eos: bool = False
    extra_body: dict[str, Any] = {}
    """Merged into every body, over what is in it."""
    api_key: str | None = None
    timeout_s: float = 600.0


class AnswerError(Exception):
    """The server did not answer as it should have; the message is one line."""


class Client:
    """Entered for the time of a run; connections are used again."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._url = call.url.rstrip("/") + PATHS[call.endpoint]
        ways: dict[Endpoint, Callable[[Prompt, AnswerMeter], Awaitable[None]]] = {
            Endpoint.CHAT: self._chat,
            Endpoint.SPEECH: self._speech,
        }
        self._way = ways[call.endpoint]
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        key = self._call.api_key
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),  # `ask` has its own
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
            return meter.answer(Ending.FAILED, clock(), _one_line(error))
        except AnswerError as error:
            return meter.answer(Ending.FAILED, clock(), str(error))
        return meter.answer(Ending.COMPLETED, clock())

    async def _chat(self, prompt: Prompt, meter: AnswerMeter) -> None:
        body = chat_body(self._call, prompt)
        async with self._session.post(self._url, json=body) as response:
            await _check(response, _EVENTS)
            parser = EventParser()
            async for received in response.content.iter_any():
                at_s = clock()
                for data in parser.feed(received):
                    if data == DONE:
                        return
                    _take(data, meter, at_s)
        raise AnswerError("the stream ended before [DONE]")

    async def _speech(self, prompt: Prompt, meter: AnswerMeter) -> None:
        body = speech_body(self._call, prompt)
        heard = False
        async with self._session.post(self._url, json=body) as response:
            await _check(response, "audio/")
            async for received in response.content.iter_any():
                meter.audio(len(received), clock())
                heard = True
        if not heard:
            raise AnswerError("the answer has no sound")


def chat_body(call: Call, prompt: Prompt) -> dict[str, Any]:
    """Of /v1/chat/completions. What is not asked for is left to the server."""
    body: dict[str, Any] = {
        "model": call.model,
        "messages": msgspec.to_builtins(prompt.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    max_tokens = call.max_tokens if prompt.max_tokens is None else prompt.max_tokens
    if max_tokens is not None:
        body["max_completion_tokens"] = max_tokens
    if call.temperature is not None:
        body["temperature"] = call.temperature
    if call.ignore_eos:
        body["ignore_eos"] = True
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
        raise AnswerError(f"in the stream: {_one_line(chunk.error.message)}")
    if chunk.usage is not None:
        meter.usage(chunk.usage)
    for choice in chunk.choices:
        delta = choice.delta
        meter.text(delta.content or delta.reasoning or "", at_s)
        if delta.audio is not None:
            meter.text(delta.audio.transcript or "", at_s)
            meter.audio(_num_bytes(delta.audio.data or ""), at_s)


def _num_bytes(base64: str) -> int:
    try:
        return len(binascii.a2b_base64(base64, strict_mode=True)) if base64 else 0
    except binascii.Error as error:
        raise AnswerError(f"sound is not base64: {error}") from error


async def _check(response: aiohttp.ClientResponse, media_type: str) -> None:
    """Raise AnswerError unless the answer is what was asked for."""
    if response.status != 200:
        body = await response.read()
        try:
            message = error_bodies.decode(body).error.message
        except msgspec.DecodeError:
            message = response.reason or ""
        raise AnswerError(f"HTTP {response.status}: {_one_line(message)}")
    if not response.content_type.startswith(media_type):
        raise AnswerError(f"the answer is {response.content_type}, not {media_type}")


def _one_line(what: object) -> str:
    kind = f"{type(what).__name__}: " if isinstance(what, BaseException) else ""
    return f"{kind}{' '.join(str(what).split())}"
