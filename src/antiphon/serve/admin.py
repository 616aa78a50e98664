"""Sleep, wake, abort, replicas and a look inside, over HTTP; where the operator has allowed it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from antiphon.serve.errors import ApiError
from antiphon.serve.service import Service


class SleepBody(BaseModel):
    """How deep: 1 keeps a copy of the weights, 2 drops them."""

    model_config = ConfigDict(extra="forbid")
    level: Literal[1, 2] = 1


class WakeBody(BaseModel):
    """What to take back; None is everything."""

    model_config = ConfigDict(extra="forbid")
    tags: list[Literal["weights", "kv_cache"]] | None = None


class AbortBody(BaseModel):
    """Which call to end: the id that its answer has."""

    model_config = ConfigDict(extra="forbid")
    request_id: Annotated[str, Field(min_length=1, max_length=256)]


class ReplicaBody(BaseModel):
    """Which copy of a stage."""

    model_config = ConfigDict(extra="forbid")
    stage: Annotated[str, Field(min_length=1, max_length=256)]
    replica: Annotated[int, Field(ge=0)] = 0


def admin_router(service: Service) -> APIRouter:
    """`/admin/…`. Each answers when what was asked for is done."""
    router = APIRouter(prefix="/admin", tags=["admin"])

    @router.post("/sleep")
    async def sleep(body: SleepBody | None = None) -> dict[str, dict[str, int]]:
        """Have every stage give memory back, once what runs has finished; calls wait meanwhile."""
        service.require_serving()
        level = SleepBody().level if body is None else body.level
        return {"bytes_freed": await service.omni.sleep(level)}

    @router.post("/wake")
    async def wake(body: WakeBody | None = None) -> dict[str, str]:
        """Undo sleep."""
        service.require_serving()
        tags: list[str] | None = None if body is None or body.tags is None else [*body.tags]
        await service.omni.wake(tags)
        return {"status": "awake"}

    @router.post("/abort")
    async def abort(body: AbortBody) -> dict[str, str]:
        """End a call on every stage."""
        if not await service.omni.abort(body.request_id):
            raise ApiError(
                404,
                f"no call with id {body.request_id!r} is running",
                code="request_not_found",
                param="request_id",
            )
        return {"request_id": body.request_id, "status": "aborted"}

    @router.get("/inspect")
    async def inspect() -> Response:
        """What every store of every stage holds, after a check that it is whole."""
        service.require_serving()
        found = await service.omni.inspect()
        return Response(msgspec.json.encode(found), media_type="application/json")

    @router.post("/drain")
    async def drain(body: ReplicaBody) -> dict[str, str | int]:
        """Give a replica no more calls; answered when it has none."""
        service.require_serving()
        await service.omni.drain(body.stage, body.replica)
        return {"stage": body.stage, "replica": body.replica, "status": "drained"}

    @router.post("/rejoin")
    async def rejoin(body: ReplicaBody) -> dict[str, str | int]:
        """Undo drain."""
        service.require_serving()
        service.omni.rejoin(body.stage, body.replica)
        return {"stage": body.stage, "replica": body.replica, "status": "ready"}

    @router.post("/restart")
    async def restart(body: ReplicaBody) -> dict[str, str | int]:
        """Drain a replica, end its process and start another; answered when that serves."""
        service.require_serving()
        await service.omni.restart(body.stage, body.replica)
        return {"stage": body.stage, "replica": body.replica, "status": "ready"}

    return router
