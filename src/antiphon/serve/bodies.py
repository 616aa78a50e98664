"""Bodies of calls before anybody reads them: how large, how slow, how much all together."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from antiphon.serve.errors import ApiError
from antiphon.serve.settings import ServeSettings

MAX_VALUES = 1 << 18
"""Of one body in JSON: its parsing takes the event loop's time."""
_WHOLE_BODIES = 8  # as many of the largest size may be under way together


class BodyBudget:
    """Bytes of the bodies of all open calls."""

    def __init__(self, settings: ServeSettings) -> None:
        self.limit = settings.max_body_bytes
        self.timeout_s = settings.body_timeout_s
        self.held = 0
        self._total = _WHOLE_BODIES * settings.max_body_bytes

    def take(self, size: int) -> None:
        """Raise ApiError if they are too many together."""
        if self.held + size > self._total:
            raise ApiError(
                503,
                "the bodies of open calls are too large together; try again later",
                code="too_many_bytes",
                retry_after_s=1,
            )
        self.held += size

    def give_back(self, size: int) -> None:
        self.held -= size

    def check_integrity(self, open_calls: int) -> None:
        """Raise AssertionError if bytes are counted that no call can have."""
        if not 0 <= self.held <= min(self._total, open_calls * self.limit):
            raise AssertionError(f"{self.held} bytes are counted for {open_calls} open calls")


class BoundedBody:
    """The body of one call: stands in for its `receive`, which raises ApiError."""

    def __init__(self, receive: Receive, headers: Headers, budget: BodyBudget) -> None:
        announced = headers.get("content-length", "")
        if announced.isascii() and announced.isdigit() and int(announced) > budget.limit:
            raise _too_large(budget.limit)
        self._receive = receive
        self._budget = budget
        self._json = "json" in headers.get("content-type", "")
        self._due = asyncio.get_running_loop().time() + budget.timeout_s
        self._size = 0
        self._values = 0
        self._whole = False

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()  # waits for the caller to go away
        try:
            async with asyncio.timeout_at(self._due):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(408, "the body came too slowly", code="body_timeout") from None
        self._take(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        return message

    def close(self) -> None:
        """The call is over."""
        self._budget.give_back(self._size)
        self._size = 0

    def _take(self, part: bytes) -> None:
        if self._size + len(part) > self._budget.limit:
            raise _too_large(self._budget.limit)
        self._budget.take(len(part))
        self._size += len(part)
        if self._json:
            self._values += part.count(b",")
            if self._values > MAX_VALUES:
                raise ApiError(
                    413, f"the body has more than {MAX_VALUES} values", code="body_too_large"
                )


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
