"""The protocols that a model's author implements at the two ends of an edge.

Both run in the worker of their stage. They see one request at a time and never another stage.
An exception in an adapter fails the request concerned and no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from antiphon.core.prompt_plan import PromptPlan
from antiphon.payload.types import Payload, Scalar


@dataclass(frozen=True, slots=True)
class OutputNeeds:
    """What an output adapter wants to be given; resolved once at load."""

    include_hidden: bool = False  # rows of the last hidden states, [n, hidden]
    side_outputs: tuple[str, ...] = ()  # names of side outputs that the model produces
    token_updates: bool = False  # accepted token ids, in order, also on steps without tensors


@dataclass(frozen=True, slots=True)
class StageContext:
    """What an adapter may know about its stage."""

    stage: str
    edge: str
    model: str  # path of the stage's checkpoint
    options: Mapping[str, Scalar]  # the edge's options from the topology


@dataclass(frozen=True, slots=True)
class StepRows:
    """Tensors of one request and one step.

    `hidden` is [n, hidden] for the n positions that were computed, or None when not asked for.
    PER_TOKEN side outputs have n rows. All tensors are copies and may be kept.
    """

    first_position: int
    hidden: torch.Tensor | None
    side: Mapping[str, torch.Tensor]


class OutputAdapter(Protocol):
    """Turns what one request produced into payloads. One object per request and edge."""

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


class InputAdapter(Protocol):
    """Turns an arrived payload into the prompt of the request that waited. One per stage and edge.

    Named in the topology as "module:Class"; made with the `StageContext`.
    """

    def plan(self, uid: str, payload: Payload, params: Mapping[str, Scalar]) -> PromptPlan:
        """The prompt as numbers for the scheduler."""
        ...


class RowInputAdapter(InputAdapter, Protocol):
    """An input adapter whose prompts are embedding rows (`PromptPlan.rows_local`)."""

    def take_rows(self, uid: str) -> torch.Tensor:
        """The rows of the prompt just planned, [num_tokens, width]; they stay in the worker."""
        ...
