"""`/v1/antiphon/traces`: the timelines of the latest requests."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query

from antiphon.observe.timelines import KEEP, Listed, Timelines, timeline_json
from antiphon.serve.errors import ApiError


def trace_router(timelines: Timelines) -> APIRouter:
    """The routes; they show what `timelines` keeps. On the observers' event loop."""
    router = APIRouter()

    @router.get("/v1/antiphon/traces")
    async def traces(limit: Annotated[int, Query(ge=1)] = KEEP) -> dict[str, Any]:
        """The requests that have ended lately, newest first."""
        listed: dict[str, Any] = msgspec.to_builtins(Listed(data=timelines.latest()[:limit]))
        return listed

    # A caller's label may have slashes in it.
    @router.get(
        "/v1/antiphon/traces/{id:path}",
        responses={404: {"description": "No such request is kept."}},
    )
    async def trace(id: str) -> dict[str, Any]:
        """One request, by its id or the caller's own."""
        timeline = timelines.get(id)
        if timeline is None:
            raise ApiError(
                404,
                f"no request {id!r} is kept; GET /v1/antiphon/traces lists those that are",
                code="trace_not_found",
            )
        return timeline_json(timeline)

    return router
