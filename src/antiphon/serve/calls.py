"""What every handler takes from a call beside its body, and its end when the caller goes away."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from antiphon.serve.errors import REQUEST_ID, VALID_ID, ApiError
from antiphon.serve.service import new_id
from antiphon.serve.settings import ServeSettings

T = TypeVar("T")

DEADLINE = "x-deadline-s"
"""Seconds after which a call fails with status 504."""
_TRACE = ("traceparent", "tracestate")  # W3C Trace Context


def deadline_s(headers: Headers, settings: ServeSettings) -> float | None:
    """Seconds that the call may take. Raises ApiError for what is no positive number."""
    given = headers.get(DEADLINE)
    if given is None:
        return settings.default_deadline_s
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise ApiError(
            400,
            f"the header {DEADLINE} is {given!r}; give a positive number of seconds",
            code="invalid_parameter",
            param=DEADLINE,
        )
    return seconds


def call_id(headers: Headers, prefix: str) -> str:
    """The id of the call: the caller's own, else a new one.

    Raises ApiError for one that could not stand in a log or an address.
    """
    given = headers.get(REQUEST_ID)
    if given is None:
        return new_id(prefix)
    if not VALID_ID.fullmatch(given):
        raise ApiError(
            400,
            f"the header {REQUEST_ID} is {given!r}; give up to 128 letters, digits and any of -_.:",
            code="invalid_parameter",
            param=REQUEST_ID,
        )
    return given


def trace_headers(headers: Headers) -> dict[str, str]:
    """The W3C trace context that came with the call."""
    return {name: headers[name] for name in _TRACE if name in headers}


async def until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises; it is cancelled when the caller goes away.

    For handlers that answer at once at the end. The body has to have been read. Raises
    ClientDisconnect if the caller has gone.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.wait((task, gone))
        if not task.cancelled():
            task.exception()  # seen


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
