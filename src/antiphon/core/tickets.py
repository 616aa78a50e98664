"""What the scheduler asks of the worker besides running the model, and what the worker answers.

Both travel with the step that they belong to: `StageWork` on the scheduler's output, `StageNews` on the runner's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import ErrorInfo
from antiphon.payload.ref import Ref

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Ticket:
    """The edges on which a request's outputs are wanted; sent to the worker once. Epochs fence sessions."""

    uid: str
    edges: tuple[str, ...]
    params: dict[str, Scalar]
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Fetch:
    """A payload that has been announced for a waiting request: take it and plan the prompt."""

    uid: str  # the consuming request
    ref: Ref
    params: dict[str, Scalar]


@dataclass(frozen=True, slots=True)
class Ended:
    """A request left the scheduler. `keep` is false for aborts and errors: what was collected is dropped."""

    uid: str
    keep: bool


@dataclass(slots=True)
class StageWork:
    """One step's orders. Empty ones are not sent."""

    tickets: list[Ticket] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    discards: list[str] = field(default_factory=list)  # connector keys that nobody will take
    tokens: dict[str, list[int]] = field(default_factory=dict)  # accepted ids since the last step
    ended: list[Ended] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.tickets or self.fetches or self.discards or self.tokens or self.ended)


@dataclass(slots=True)
class StageNews:
    """One step's answers."""

    planned: list[tuple[str, PromptPlan]] = field(default_factory=list)  # (consuming uid, its prompt)
    refs: list[Ref] = field(default_factory=list)  # payloads that the connector now holds
    failed: list[tuple[str, ErrorInfo]] = field(default_factory=list)  # (uid, why) of requests to end

    def __bool__(self) -> bool:
        return bool(self.planned or self.refs or self.failed)
