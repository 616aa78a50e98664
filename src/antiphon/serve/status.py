"""What can be asked about the server itself."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse

from antiphon.serve.service import Service


def status_router(service: Service) -> APIRouter:
    """`/health`, `/version`, `/v1/models`."""
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.get(
        "/health", tags=["server"], responses={503: {"description": "It answers no calls now"}}
    )
    async def health() -> JSONResponse:
        """200 while each stage has a replica that serves, else 503; how each is is in the body."""
        serves, body = service.health()
        return JSONResponse(body, 200 if serves else 503)

    @router.get("/version", tags=["server"])
    async def version() -> dict[str, str]:
        """The version of the server."""
        return {"version": importlib.metadata.version("antiphon")}

    @router.get("/v1/models", tags=["models"])
    async def models() -> dict[str, Any]:
        """The one model that is served: the pipeline."""
        return {"object": "list", "data": [_card(service)]}

    @router.get("/v1/models/{model}", tags=["models"])
    async def model(model: str) -> dict[str, Any]:
        """The model of this name."""
        service.check_model(model)
        return _card(service)

    return router


def _card(service: Service) -> dict[str, Any]:
    """OpenAI's fields, and what can be asked of the pipeline."""
    topology = service.omni.topology
    entries = {
        entry.name: {
            "inputs": list(entry.inputs),
            "outputs": outputs,
            "params": list(entry.params),
        }
        for entry in topology.entries
        if (outputs := _outputs(service, entry.name))
    }
    return {
        "id": service.model,
        "object": "model",
        "created": service.started_unix_s,
        "owned_by": "antiphon",
        "antiphon": {
            "pipeline": topology.name,
            "description": topology.description,
            "sample_rate": topology.sample_rate,
            "entries": entries,
            "stages": [
                {"name": stage.name, "kind": str(stage.kind), "output": stage.output}
                for stage in topology.stages
            ],
            "edges": [
                {"name": edge.name, "producer": edge.producer, "consumer": edge.consumer}
                for edge in topology.edges
            ],
        },
    }


def _outputs(service: Service, entry: str) -> list[str]:
    """What the entry gives with the stages that were to start; before that is known, all."""
    topology, started = service.omni.topology, service.omni.stage_states
    possible = topology.outputs_from(entry)
    if not started:
        return list(possible)
    return [
        output
        for output in possible
        if all(stage.name in started for stage in topology.path_from(entry, [output]))
    ]
