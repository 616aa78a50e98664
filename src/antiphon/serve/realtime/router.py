"""`/v1/realtime`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.websockets import WebSocket

from antiphon.serve.errors import ApiError
from antiphon.serve.realtime.options import Abilities
from antiphon.serve.realtime.socket import RealtimeSocket
from antiphon.serve.service import Service

_PROTOCOL = "realtime"
"""What OpenAI's clients in browsers offer, beside the key."""


def realtime_router(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter()

    @router.websocket("/v1/realtime")
    async def realtime(socket: WebSocket) -> None:
        try:
            caller = _caller(socket, service)
        except ApiError as error:
            await socket.send_denial_response(error.response())
            return
        offered = socket.scope["subprotocols"]
        await socket.accept(_PROTOCOL if _PROTOCOL in offered else None)
        await caller.run()

    return router


def _caller(socket: WebSocket, service: Service) -> RealtimeSocket:
    """Raises ApiError, which the caller is told instead of being accepted."""
    service.require_serving()
    service.check_model(socket.query_params.get("model", service.model))
    started, topology = service.omni.stage_states, service.omni.topology
    return RealtimeSocket(socket, service, Abilities.of(topology, started, service.model))
