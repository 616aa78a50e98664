"""The protocols that a model's author implements at the two ends of an edge.

Both run in the worker of their stage. They see one request at a time and never another stage.
An exception in an adapter fails the request concerned and no other. Their methods are called one
at a time, not always by the same thread; `OutputAdapterFactory.open` may be called meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from antiphon.core.prompt_plan import PromptPlan
from antiphon.payload.kv import KvSnapshot
from antiphon.payload.types import Payload, Scalar

INPUT_IDS = "input_ids"
"""Side output of every ar stage: the token that each position was computed from, int64 [n]."""

FRAMES = "frames"
"""Side output of a model that makes frames (`Capabilities.frame_size`): int64 [n, frame_size].

The frame of the token that was sampled *from* a position; -1 at positions of the prompt that
nothing was sampled from. It comes together with its token, also with one that ends the request.
"""


def layer_output(layer: int) -> str:
    """Side output of an ar stage: hidden states after this many layers, [n, hidden].

    0 are the input embeddings, of any model. For others it must support vLLM's auxiliary hidden
    states (EAGLE-3).
    """
    return f"layer.{layer}"


@dataclass(frozen=True, slots=True)
class OutputNeeds:
    """What an output adapter wants to be given; resolved once at load.

    Hidden states serve logits and sampling whether or not they are wanted here. A factory may make
    its needs out of the checkpoint's configuration.
    """

    include_hidden: bool = False  # rows of the last hidden states, [n, hidden]
    # Names of side outputs: those above, and those that the model returns with its hidden states.
    side_outputs: tuple[str, ...] = ()
    requires_token_updates: bool = False  # accepted ids, in order, also on steps without tensors


@dataclass(frozen=True, slots=True)
class StageContext:
    """What an adapter may know about its stage."""

    stage: str
    edge: str
    model: str  # path of the stage's checkpoint
    options: Mapping[str, Scalar]  # the edge's options
    stream: bool = False  # whether payloads leave while the request runs


@dataclass(frozen=True, slots=True)
class StepRows:
    """Tensors of one request and one step.

    `hidden` is [n, hidden] for the n positions that were computed, or None when not asked for.
    PER_TOKEN side outputs have n rows. The tensors are views of one copy that the step's requests
    share: they may be kept but not written to, and each keeps the whole copy in memory. An adapter
    that keeps a few rows for long should clone them.
    """

    first_position: int
    hidden: torch.Tensor | None
    side: Mapping[str, torch.Tensor]


class OutputAdapter(Protocol):
    """Turns what one request produced into payloads. One object per request, edge and epoch.

    On a stream edge payloads leave at once, each a chunk. On a full edge they are kept until the
    request ends; it carries one payload for each consuming request.
    """

    def on_tokens(self, token_ids: Sequence[int]) -> Sequence[Payload]:
        """Accepted tokens of a step, each exactly once and in order."""
        ...

    def on_rows(self, rows: StepRows) -> Sequence[Payload]:
        """Tensors of a step; positions computed again after a preemption are not repeated."""
        ...

    def on_end(self) -> Sequence[Payload]:
        """What is left of a request that finished normally; the last of it is marked as the end.

        Not called for requests that were aborted or failed. Nothing left: an explicit empty end.
        """
        ...


class OutputAdapterFactory(Protocol):
    """One per stage and edge: `factory(context)`, named in the topology as "module:Class"."""

    needs: OutputNeeds

    def open(self, uid: str, params: Mapping[str, Scalar]) -> OutputAdapter: ...


@dataclass(frozen=True, slots=True)
class Input:
    """What a chunk became. Nothing at all: the adapter has absorbed it and waits for more.

    An `ar` request is given one `plan`, its prompt, and `rows`: output token r is computed with row
    r. On a stream edge rows may come with later chunks; the request waits for those it needs. A
    generation request is given one plan per forward. `cache` is what the request attends to: an
    `ar` prompt begins with the tokens that it covers, a generation model is given it with its
    forward.

    With `plan.rows_local` the prompt is made of rows: `prompt_rows`, and `prompt_marks` for a model
    that embeds its prompts itself (`PromptEmbedder`) and has to know more of each row.
    """

    plan: PromptPlan | None = None
    prompt_rows: torch.Tensor | None = None  # [num_tokens, width]
    rows: torch.Tensor | None = None  # [n, width], behind those that came before
    padding: torch.Tensor | None = None  # [width], for steps past the last row, with the end
    cache: KvSnapshot | None = None
    prompt_marks: torch.Tensor | None = None  # integers [num_tokens, m]


class InputAdapter(Protocol):
    """Turns the chunks of one request into its prompt and conditioning, in order."""

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        """One chunk; a full edge has one, which is the last."""
        ...

    def on_end(self) -> Input:
        """The stream has ended with an empty chunk, after others.

        A generation adapter whose model owes a last output plans its forward here; without a plan
        the request ends.
        """
        ...


class InputAdapterFactory(Protocol):
    """One per stage and edge: `factory(context)`, named in the topology as "module:Class"."""

    def open(self, uid: str, params: Mapping[str, Scalar]) -> InputAdapter: ...
