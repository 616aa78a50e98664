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
    """The edges on which a request's outputs are wanted; sent to the worker once per epoch.

    Epochs number the segments of a session; `first` is the position of the first row that is wanted
    of this one.
    """

    uid: str
    edges: tuple[str, ...]
    params: dict[str, Scalar]
    epoch: int = 0
    first: int = 0


@dataclass(frozen=True, slots=True)
class Fetch:
    """A chunk that has been announced for a request: take it, in the order of the fetches.

    A ref without a key is the end of a stream that has brought chunks before.
    """

    uid: str  # the consuming request
    ref: Ref
    params: dict[str, Scalar]


@dataclass(frozen=True, slots=True)
class Ended:
    """A request, or a segment of a session, ended after `num_tokens` accepted tokens, prompt
    included.

    `keep` is false for aborts and errors: what was collected is dropped.
    """

    uid: str
    keep: bool
    num_tokens: int = 0
    epoch: int = 0


@dataclass(slots=True)
class Accepted:
    """Token ids that the scheduler accepted since the last step, and how many the
    request has now.
    """

    token_ids: list[int]
    num_tokens: int  # prompt included
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class KvShip:
    """Copy a request's cache out of these blocks, before the step's forward, and store it.

    `generation` numbers the stage's hand-offs: whatever belongs to an older one can be told.
    """

    uid: str
    edge: str
    epoch: int
    generation: int
    length: int  # tokens whose keys and values are in the blocks
    token_ids: tuple[int, ...]  # those, and the one sampled after them if there is one
    block_ids: tuple[tuple[int, ...], ...]  # by KV group
    salt: str | None = None  # of the request's prefix-cache keys


@dataclass(frozen=True, slots=True)
class KvAck:
    """What became of a `KvShip`: the ref of what is stored now, or why there is none."""

    uid: str
    generation: int
    ref: Ref | None = None
    error: ErrorInfo | None = None


@dataclass(slots=True)
class StageWork:
    """One step's orders. Empty ones are not sent."""

    tickets: list[Ticket] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    discards: list[str] = field(default_factory=list)  # connector keys that nobody will take
    tokens: dict[str, Accepted] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    ships: list[KvShip] = field(default_factory=list)
    retry: bool = False  # try again to store what could not be stored

    def __bool__(self) -> bool:
        return self.retry or bool(
            self.tickets or self.fetches or self.discards or self.tokens or self.ended or self.ships
        )


@dataclass(frozen=True, slots=True)
class Arrived:
    """A chunk that a fetch named is local to the worker now."""

    uid: str  # the consuming request
    key: str | None
    last: bool  # nothing follows it
    plan: PromptPlan | None = None  # ar: the prompt; generation: the next forward's input
    rows: int = 0  # decode rows that it brought
    cached: int = 0  # ar: leading tokens of the plan's prompt whose cache the worker has


@dataclass(slots=True)
class StageNews:
    """One step's answers."""

    arrived: list[Arrived] = field(default_factory=list)
    refs: list[Ref] = field(default_factory=list)  # payloads that the connector now holds
    # (uid, why) of requests to end
    failed: list[tuple[str, ErrorInfo]] = field(default_factory=list)
    acks: list[KvAck] = field(default_factory=list)
    retry_in_s: float | None = None  # something could not be stored: order a retry after this time

    def __bool__(self) -> bool:
        return self.retry_in_s is not None or bool(
            self.arrived or self.refs or self.failed or self.acks
        )
