"""The topology: a directed graph of stages, declared once by the pipeline's author. Frozen, validated at construction.

Names in "module:attribute" form are resolved where they are needed, never here, so that listing pipelines imports
no model code.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

Scalar = bool | int | float | str


class StageKind(enum.StrEnum):
    """`ar` samples tokens step by step, `generation` makes one forward per input."""

    AR = "ar"
    GENERATION = "generation"


class EdgeMode(enum.StrEnum):
    """`full`: one payload when the producer finishes. `stream`: chunks while it runs."""

    FULL = "full"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Stage:
    """A node of the graph."""

    name: str
    kind: StageKind
    model: str  # "module:function" that returns the checkpoint's folder (pathlib.Path), fetching it if need be
    output: str | None = None  # modality that leaves the pipeline here: "text", "audio", …
    engine: Mapping[str, object] = field(default_factory=dict)  # vLLM EngineArgs that the model needs
    sampling: Mapping[str, object] = field(default_factory=dict)  # default SamplingParams
    atomic_inputs: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """Producer to consumer. With `split` each payload of the producer is a part with a consumer request of its own."""

    name: str
    producer: str
    consumer: str
    mode: EdgeMode
    output_adapter: str  # "module:Class", an OutputAdapterFactory
    input_adapter: str  # "module:Class", an InputAdapter
    split: bool = False
    options: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """A way into the pipeline: which stage a kind of call starts at, and what turns the call into prompts.

    `adapter` is "module:Class"; the class is made once with the checkpoint's folder and called with an `EntryRequest`;
    it returns one list of token ids per part.
    """

    name: str
    stage: str
    adapter: str


@dataclass(frozen=True, slots=True)
class Topology:
    """A whole pipeline."""

    name: str
    description: str
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    entries: tuple[Entry, ...]
    sample_rate: int = 24_000  # of the audio output, Hz
