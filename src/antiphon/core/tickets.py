"""What the scheduler asks of the worker besides running the model, and what the worker answers.

Both travel with the step that they belong to: `StageWork` on the scheduler's output, `StageNews`
on the runner's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import ErrorInfo
from antiphon.payload.ref import Ref

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Ticket:
    """The edges on which a request's outputs are wanted; sent to the worker once.

    Epochs fence sessions.
    """

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
    """A request left the scheduler after `num_tokens` accepted tokens, prompt included.

    `keep` is false for aborts and errors: what was collected is dropped.
    """

    uid: str
    keep: bool
    num_tokens: int = 0


@dataclass(slots=True)
class Accepted:
    """Token ids that the scheduler accepted since the last step, and how many the
    request has now.
    """

    token_ids: list[int]
    num_tokens: int  # prompt included


@dataclass(slots=True)
class StageWork:
    """One step's orders. Empty ones are not sent."""

    tickets: list[Ticket] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    discards: list[str] = field(default_factory=list)  # connector keys that nobody will take
    tokens: dict[str, Accepted] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.tickets or self.fetches or self.discards or self.tokens or self.ended)


@dataclass(slots=True)
class StageNews:
    """One step's answers."""

    # (consuming uid, its prompt)
    planned: list[tuple[str, PromptPlan]] = field(default_factory=list)
    refs: list[Ref] = field(default_factory=list)  # payloads that the connector now holds
    # (uid, why) of requests to end
    failed: list[tuple[str, ErrorInfo]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.planned or self.refs or self.failed)
