"""What the answers of all calls that the pipeline works on have in common."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, NoReturn, Self

import msgspec

from antiphon.errors import AntiphonError
from antiphon.orchestrator.api import Finished, OmniEvent, OmniRequest, Reply, Usage
from antiphon.serve.errors import ABORTED, ApiError
from antiphon.serve.service import Service
from antiphon.serve.streamed import CutOffError

Failure = AntiphonError | ApiError


class Tokens(msgspec.Struct, frozen=True):
    """What a call took, as OpenAI's audio endpoints count it."""

    input_tokens: int
    output_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> Self:
        tokens = (usage.prompt_tokens, usage.completion_tokens)
        return cls(*tokens, sum(tokens))


def responses(description: str, *media_types: str) -> dict[int | str, dict[str, Any]]:
    """A route's answers, for the OpenAPI schema; what is given is about the one asked for."""
    return {
        200: {"description": description, "content": {kind: {} for kind in media_types}},
        404: {"description": "The model is not served here."},
        429: {"description": "As many requests wait as may."},
        ABORTED: {"description": "The call was ended by `/admin/abort`."},
        503: {"description": "The server does not serve (yet, or any more)."},
        504: {"description": "The call's deadline has passed."},
    }


async def events_of(service: Service, request: OmniRequest) -> AsyncGenerator[OmniEvent]:
    """The pipeline's events. Closing it ends the request on every stage.

    Raises what the request fails with, ApiError if it is aborted.
    """
    async with contextlib.aclosing(service.omni.stream(request)) as events:
        async for event in events:
            if isinstance(event, Finished):
                _check_whole(event.reply)
            yield event


async def reply_to(service: Service, request: OmniRequest) -> Reply:
    """The whole reply. Raises as `events_of`."""
    reply = await service.omni.generate(request)
    _check_whole(reply)
    return reply


def _check_whole(reply: Reply) -> None:
    """An answer that was broken off is none."""
    if reply.finish_reason == "abort":
        raise ApiError(ABORTED, "the call was ended by an abort", code="request_aborted")


async def begun(
    parts: AsyncGenerator[bytes], failed: Callable[[Failure], bytes]
) -> AsyncGenerator[bytes]:
    """An answer as it is sent: a failure before its first part is raised, so that it can have a
    status; of a later one `failed` makes the last part, or raises. Closing it closes `parts`.
    """
    sent = False
    try:
        async with contextlib.aclosing(parts):
            async for part in parts:
                yield part
                sent = True
    except (AntiphonError, ApiError) as error:
        if not sent:
            raise
        yield failed(error)


def cut_off(error: Failure) -> NoReturn:
    """The end of an answer that has no form for a failure. Raises CutOffError."""
    raise CutOffError from error
