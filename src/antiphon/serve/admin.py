"""Sleep, wake, abort and a look inside, over HTTP; only where the operator has allowed it."""

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


def admin_router(service: Service) -> APIRouter:
    """`/admin/…`: sleep, wake, abort, inspect. Each answers when every stage has."""
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

    return router
