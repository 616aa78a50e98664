"""Which of OpenAI's endpoints a pipeline can serve: those that it has an entry for."""

from __future__ import annotations

from antiphon.pipeline.topology import Entry, Topology
from antiphon.serve.errors import ApiError

ENDPOINTS = {
    "chat": "/v1/chat/completions",
    "speech": "/v1/audio/speech",
    "transcribe": "/v1/audio/transcriptions",
}
"""By the entry of the topology."""


def entry_for(topology: Topology, name: str) -> Entry:
    """The entry of this name. Raises ApiError for a pipeline that has none."""
    for entry in topology.entries:
        if entry.name == name:
            return entry
    known = [ENDPOINTS.get(entry.name, entry.name) for entry in topology.entries]
    raise ApiError(
        400,
        f"pipeline {topology.name} does not serve {ENDPOINTS[name]}; it serves {', '.join(known)}",
        code="unsupported_endpoint",
        param="model",
    )
