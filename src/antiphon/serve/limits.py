"""What stands before every handler: who may call, how much, and how long.

Pure ASGI, so that streamed answers pass without being wrapped. One middleware per concern.
"""

from __future__ import annotations

import asyncio
import hmac

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.serve import page
from antiphon.serve.bodies import BoundedBody
from antiphon.serve.errors import ApiError
from antiphon.serve.service import Service
from antiphon.serve.sites import check_site

OPEN_PATHS = page.PATHS | {"/health", "/version"}
"""May be asked for without a key, and whatever the load: the page, and what supervisors ask."""
_UNCOUNTED = OPEN_PATHS | {"/metrics"}
# A browser cannot set headers of a WebSocket: OpenAI's clients put the key into the protocols.
_KEY_PROTOCOL = "openai-insecure-api-key."
_CLOSE_POLICY = 1008  # RFC 6455, policy violation


class Limits:
    """The gate of the server: sites, key, number of calls, bodies, slow readers."""

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
            check_site(Headers(scope=scope), self._service.settings)
            self._check_key(scope)
            if scope["path"] in _UNCOUNTED:
                await self._app(scope, receive, answer)
                return
            async with self._service.call():
                await self._call(scope, receive, answer)
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

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        body = BoundedBody(receive, Headers(scope=scope), self._service.bodies)
        try:
            await self._app(scope, body, send)
        finally:
            body.close()

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


async def _refuse(scope: Scope, receive: Receive, send: Send, error: ApiError) -> None:
    if scope["type"] == "http":
        await error.response(Headers(scope=scope))(scope, receive, send)
        return
    if "websocket.http.response" in scope.get("extensions", {}):
        response = error.response(Headers(scope=scope))
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
