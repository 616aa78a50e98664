"""What a topology is made of: stages, edges and entries; checked with the whole.

Edges are `full` or `stream`, and an operator may run one in the other mode (`deployed`) unless it
hands a KV cache on, is shared, or does not stream.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from antiphon.core.budget import EdgeLimits
from antiphon.core.kv_handoff import KvTransfer
from antiphon.core.options import Preemption, Scalar


class StageKind(enum.StrEnum):
    """`ar` samples tokens step by step, `generation` makes one forward per input."""

    AR = "ar"
    GENERATION = "generation"


class EdgeMode(enum.StrEnum):
    """`full`: payloads cross when the producer finishes. `stream`: while it runs."""

    FULL = "full"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Stage:
    """A node of the graph.

    `model` is "module:function"; `function(progress)` returns the checkpoint's folder as a
    `pathlib.Path`, fetches it if need be, and calls `progress(phase, fraction)` with what it is
    doing and how much of it is done (0 to 1, None if it cannot tell). An operator may name another
    folder. Stages may share a checkpoint: `config` picks a stage's part of its configuration.
    `engine` holds vLLM EngineArgs that the model needs, plain data only: it crosses a process
    boundary. `sampling` holds default SamplingParams, plain data too.
    """

    name: str
    kind: StageKind
    model: str
    # Modality that leaves the pipeline here: "text", "audio", "image", or "transcript", the text of
    # what was heard.
    output: str | None = None
    engine: Mapping[str, object] = field(default_factory=dict)
    sampling: Mapping[str, object] = field(default_factory=dict)
    atomic_inputs: bool = False  # generation: an input over the token budget is an error
    preemption: Preemption = Preemption.RECOMPUTE  # ar: what happens when cache blocks run out
    config: str | None = None  # "module:function": vLLM's `hf_overrides`, config → stage's config
    model_type: str | None = None  # what the checkpoint's config.json must say
    weights: tuple[str, ...] = ()  # prefixes of weights that the checkpoint must have
    # ar: "module:Class", an InputAdapterFactory that makes the prompt of an entry's token ids.
    prompt_adapter: str | None = None
    facts: str | None = None  # "module:function": checkpoint's folder → CheckpointFacts


@dataclass(frozen=True, slots=True)
class Edge:
    """Producer to consumer.

    Without `split` a full edge carries one payload, and the chunks of a stream edge go to one
    consumer request that runs meanwhile. With `split`, in either mode, each payload is a part with
    a consumer request of its own. `options` are the adapters' own; an operator may change the
    values of those that are declared here.

    With `kv` the one payload of a full edge carries the request's KV cache, and leaves when the
    criterion is met. A `shared` payload is for as many consumer requests as the caller asks for
    (`OmniRequest.n`): companions, which it is made, kept and moved once for.

    Without `streams` an edge is always full: its consumer needs everything at once.

    `join` is the inverse of `split`: the producer's requests are the parts of one call, and the one
    payload of each is a chunk of the one consumer request, in the parts' order.
    """

    name: str
    producer: str
    consumer: str
    mode: EdgeMode
    output_adapter: str  # "module:Class", an OutputAdapterFactory
    input_adapter: str  # "module:Class", an InputAdapterFactory
    split: bool = False
    options: Mapping[str, Scalar] = field(default_factory=dict)
    kv: KvTransfer | None = None
    shared: bool = False
    streams: bool = True
    join: bool = False
    # What may be outstanding; an operator may say otherwise.
    limits: EdgeLimits = field(default_factory=EdgeLimits)

    @property
    def why_full(self) -> str | None:
        """Why it cannot be a stream; None if it can."""
        if self.kv is not None:
            return "hands a KV cache on in one payload"
        if self.shared:
            return "is shared by several requests in one payload"
        if self.join:
            return "joins parts that bring one payload each"
        return None if self.streams else f"gives {self.consumer} everything at once"


@dataclass(frozen=True, slots=True)
class Ear:
    """Where an entry's requests with audio start instead: a stage in front of the entry's own, and
    the maker of their prompts, as `Entry.adapter` is it of the others'.
    """

    stage: str
    adapter: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A way into the pipeline: the stage that a kind of call starts at, and its prompts' maker.

    `adapter` is "module:Class"; the class is made once with the checkpoint's folder and called with
    an `EntryRequest`; it returns one prompt per part. `inputs` are the modalities that a request
    may have: audio only where the adapter puts it into its prompts, or the entry has an `ear`.
    `params` names what else a request may tell the pipeline's models (`OmniRequest.params`).
    `outputs` limits what it gives (None: all from its stage on).
    """

    name: str
    stage: str
    adapter: str
    inputs: tuple[str, ...] = ("text",)  # and "audio", or that alone
    params: tuple[str, ...] = ()
    outputs: tuple[str, ...] | None = None
    ear: Ear | None = None

    def start(self, *, heard: bool = False) -> str:
        """The stage that its requests start at; `heard`: those with audio."""
        return self.ear.stage if heard and self.ear is not None else self.stage
