"""Antiphon: the autoregressive runtime for omni models on unmodified vLLM."""

from antiphon.core.kv_handoff import KvTransfer
from antiphon.errors import AntiphonError
from antiphon.orchestrator.api import (
    AudioChunk,
    Finished,
    ImageChunk,
    OmniEvent,
    OmniRequest,
    Reply,
    SessionEvent,
    StageTiming,
    TextDelta,
    Timings,
    TranscriptDelta,
)
from antiphon.orchestrator.omni import AsyncOmni
from antiphon.orchestrator.sessions import Session
from antiphon.orchestrator.sync import Omni
from antiphon.pipeline.audio import AudioClip
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.deployment_file import load_deployment
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.pipeline.topology import Ear, Edge, EdgeMode, Entry, Stage, StageKind, Topology

__version__ = "0.1.0"

__all__ = [
    "AntiphonError",
    "AsyncOmni",
    "AudioChunk",
    "AudioClip",
    "Deployment",
    "Ear",
    "Edge",
    "EdgeDeployment",
    "EdgeMode",
    "Entry",
    "Finished",
    "ImageChunk",
    "KvTransfer",
    "Omni",
    "OmniEvent",
    "OmniRequest",
    "Reply",
    "Session",
    "SessionEvent",
    "Stage",
    "StageDeployment",
    "StageKind",
    "StageTiming",
    "TextDelta",
    "Timings",
    "Topology",
    "TranscriptDelta",
    "load_deployment",
]
