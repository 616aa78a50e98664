"""What stands before every handler: who may call, how much, and how long.

Pure ASGI, so that streamed answers pass without being wrapped. One middleware per concern.
"""

from __future__ import annotations

import asyncio
import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.serve import page
from antiphon.serve.errors import ApiError
from antiphon.serve.service import Service

OPEN_PATHS = page.PATHS | {"/health", "/version"}
"""May be asked for without a key, and whatever the load: the page, and what supervisors ask."""
_UNCOUNTED = OPEN_PATHS | {"/metrics"}
# A browser cannot set headers of a WebSocket: OpenAI's clients put the key into the protocols.
_KEY_PROTOCOL = "openai-insecure-api-key."
_CLOSE_POLICY = 1008  # RFC 6455, policy violation


class Limits:
    """The gate of the server: origin, key, number of calls, size and time of bodies."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        patience = Patience(send, self._service.settings.write_timeout_s)
        answer = patience.send
        try:
            self._check_origin(scope)
            self._check_key(scope)
            if scope["path"] in _UNCOUNTED:
                await self._app(scope, receive, answer)
                return
            async with self._service.call():
                inner = self._bounded(scope, receive) if scope["type"] == "http" else receive
                await self._app(scope, inner, answer)
        except ApiError as error:
            if patience.began:
                raise  # the answer is under way: nothing can be said any more
            await _refuse(scope, receive, send, error)
        except ClientDisconnect:
            pass  # nobody is there to be answered
        except asyncio.CancelledError:
            if not patience.forgive():
                raise
        finally:
            patience.close()

    def _check_origin(self, scope: Scope) -> None:
        """A page of another site must not use a server that its reader's machine can reach."""
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        allowed = self._service.settings.allow_origins
        if origin is None or "*" in allowed or origin in allowed:
            return
        if (host := _host_of(origin)) is None or host != headers.get("host"):
            raise ApiError(
                403,
                f"pages of {origin[:256]} may not call this server; start it with --allow-origin",
                code="origin_not_allowed",
            )

    def _check_key(self, scope: Scope) -> None:
        key = self._service.settings.api_key
        if key is None or scope["path"] in OPEN_PATHS or scope.get("method") == "OPTIONS":
            return
        wanted = key.encode(errors="surrogateescape")  # as it stands in the environment
        if not any(hmac.compare_digest(given, wanted) for given in _keys(scope)):
            raise ApiError(
                401,
                "the API key is wrong or missing; give it as Authorization: Bearer KEY",
                code="invalid_api_key",
            )

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """`receive` that raises ApiError for a body that is too large or too slow."""
        settings = self._service.settings
        limit, headers = settings.max_body_bytes, Headers(scope=scope)
        announced = headers.get("content-length", "")
        if announced.isascii() and announced.isdigit() and int(announced) > limit:
            raise _too_large(limit)
        due = asyncio.get_running_loop().time() + settings.body_timeout_s
        received, whole = 0, False

        async def bounded() -> Message:
            nonlocal received, whole
            if whole:
                return await receive()  # waits for the caller to go away
            try:
                async with asyncio.timeout_at(due):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, "the body came too slowly", code="body_timeout") from None
            received += len(message.get("body", b""))
            if received > limit:
                raise _too_large(limit)
            whole = not message.get("more_body", False)
            return message

        return bounded


class Patience:
    """The sending of one answer. Cancels the call's task if the caller takes nothing for too long.

    One timer looks now and then, since a timeout around every message would cost more than the
    message.
    """

    def __init__(self, send: Send, timeout_s: float) -> None:
        self.began = False
        self._send = send
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._since: float | None = None  # what is being sent has waited since then
        self._over = False
        self._timer = self._loop.call_later(timeout_s, self._look)

    async def send(self, message: Message) -> None:
        self.began = True
        self._since = self._loop.time()
        try:
            await self._send(message)
        finally:
            self._since = None

    def forgive(self) -> bool:
        """Whether the task was cancelled from here. The server then closes the connection."""
        if self._over and self._task is not None:
            self._task.uncancel()
        return self._over

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        waited = 0.0 if self._since is None else self._loop.time() - self._since
        if waited >= self._timeout_s and self._task is not None:
            self._over = True
            self._task.cancel()
        else:
            self._timer = self._loop.call_later(self._timeout_s - waited, self._look)


def _host_of(origin: str) -> str | None:
    """Host and port of an origin; None for what is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _keys(scope: Scope) -> list[bytes]:
    """What the caller gives as its key."""
    headers = Headers(scope=scope)
    scheme, _, key = headers.get("authorization", "").partition(" ")
    found = [key.strip()] if scheme.lower() == "bearer" else []
    if scope["type"] == "websocket":
        found += [
            protocol.removeprefix(_KEY_PROTOCOL)
            for protocol in scope.get("subprotocols", ())
            if protocol.startswith(_KEY_PROTOCOL)
        ]
    return [key.encode("latin-1", "replace") for key in found]  # the bytes that came


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")


async def _refuse(scope: Scope, receive: Receive, send: Send, error: ApiError) -> None:
    if scope["type"] == "http":
        await error.response()(scope, receive, send)
        return
    if "websocket.http.response" in scope.get("extensions", {}):
        response = error.response()
        await send(
            {
                "type": "websocket.http.response.start",
                "status": response.status_code,
                "headers": response.raw_headers,
            }
        )
        await send({"type": "websocket.http.response.body", "body": bytes(response.body)})
        return
    await send({"type": "websocket.close", "code": _CLOSE_POLICY, "reason": error.detail})
