"""What the orchestrator and a stage say to each other.

One tagged union per direction. Tensors that leave the pipeline ride beside the message as raw
frames; `Tensor.frame` is the index of the frame.
"""

from __future__ import annotations

from typing import Any

import msgspec

from antiphon.core.budget import BudgetStatistics
from antiphon.core.gate import GateStatistics
from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import ErrorInfo
from antiphon.observe.families import Family
from antiphon.payload.ref import Ref
from antiphon.pipeline.audio import AudioClip
from antiphon.sched.events import HandoffStatistics

Scalar = bool | int | float | str


class Submit(msgspec.Struct, tag=True, frozen=True):
    """Start a request.

    With `waits_for` its prompt is a placeholder until that edge has delivered.
    """

    uid: str
    token_ids: list[int]
    sampling: dict[str, Any]  # keyword arguments of SamplingParams; unused by generation stages
    edges: tuple[str, ...] = ()  # outgoing edges on which its outputs are wanted
    waits_for: str | None = None
    wait_timeout_s: float | None = None  # None: the stage's setting; the smaller of the two wins
    params: dict[str, Scalar] = {}  # for adapters and generation models
    priority: int = 0
    session: bool = False  # it rests at its end and goes on with `Update`
    epoch: int = 0  # number of the segment, or of the one that it consumes
    audio: tuple[AudioClip, ...] = ()  # clips of the prompt, in the order of their tokens


class Deliver(msgspec.Struct, tag=True, frozen=True):
    """Chunks for consuming requests: pairs of (consuming uid, ref)."""

    items: list[tuple[str, Ref]]


class Used(msgspec.Struct, tag=True, frozen=True):
    """Chunks of an outgoing edge that their consumers have used up: there is room for more."""

    edge: str
    keys: list[str]


class Update(msgspec.Struct, tag=True, frozen=True):
    """New input of a session: segment `epoch` begins, when the one before has ended.

    A replacement begins at once. What is wrong with it comes back as the request's error.
    """

    uid: str
    epoch: int
    kind: UpdateKind
    token_ids: list[int]
    keep: int = 0  # tokens that a window keeps
    sampling: dict[str, Any] | None = None  # None: as before


class Interrupt(msgspec.Struct, tag=True, frozen=True):
    """End a session's running segment, if there is one. Answered by `Interrupted`."""

    uid: str
    token: int


class Discard(msgspec.Struct, tag=True, frozen=True):
    """Connector keys that nobody will take any more."""

    keys: list[str]


class Abort(msgspec.Struct, tag=True, frozen=True):
    """End these requests.

    Answered by `Aborted` when their blocks are free and the worker has forgotten them.
    """

    uids: list[str]
    token: int


class Sleep(msgspec.Struct, tag=True, frozen=True):
    """Give memory back. Answered by `Acknowledged`."""

    level: int
    token: int


class Wake(msgspec.Struct, tag=True, frozen=True):
    """Undo `Sleep`. Answered by `Acknowledged`."""

    tags: list[str] | None
    token: int


class Inspect(msgspec.Struct, tag=True, frozen=True):
    """Check every store's integrity and report. Answered by `Inspection`."""

    token: int


class Measure(msgspec.Struct, tag=True, frozen=True):
    """Report figures; nothing is checked. Answered by `Measured` between two steps."""

    token: int


class Ping(msgspec.Struct, tag=True, frozen=True):
    """Show a sign of life. Answered by `Pong`, also in the middle of a step."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    """Shut the engine down and end."""


Command = (
    Submit
    | Deliver
    | Used
    | Update
    | Interrupt
    | Discard
    | Abort
    | Sleep
    | Wake
    | Inspect
    | Measure
    | Ping
    | Stop
)


class Tensor(msgspec.Struct, frozen=True):
    """A tensor that leaves the pipeline: dtype as numpy names it, shape, index of its raw frame."""

    dtype: str
    shape: tuple[int, ...]
    frame: int


class Output(msgspec.Struct, frozen=True):
    """What a step brought for one request.

    `finish` is one of stop, length, abort, error, or None while it runs. `segment_finish` is one of
    stop, length, interrupt, when segment `epoch` of a session has ended.
    """

    uid: str
    token_ids: list[int] = []
    tensor: Tensor | None = None
    finish: str | None = None
    stop_reason: int | str | None = None
    error: ErrorInfo | None = None
    epoch: int = 0
    segment_finish: str | None = None
    prompt_tokens: int = 0  # with the first output: the prompt as the model saw it
    cached_tokens: int = 0  # those of them that a cache had


class Starting(msgspec.Struct, tag=True, frozen=True):
    """Progress while the stage starts: what it is doing now."""

    phase: str


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The stage serves. Sizes in tokens and bytes."""

    max_model_len: int
    num_blocks: int
    block_size: int
    vllm_version: str


class Step(msgspec.Struct, tag=True, frozen=True):
    """What one engine step brought: outputs, refs of chunks that the connector now holds, and the
    keys of chunks that are used up, by incoming edge.
    """

    outputs: list[Output]
    refs: list[Ref]
    used: dict[str, list[str]] = {}


class Interrupted(msgspec.Struct, tag=True, frozen=True):
    """Answer to `Interrupt`: nothing of the segment comes after this message."""

    uid: str
    token: int


class Aborted(msgspec.Struct, tag=True, frozen=True):
    """Answer to `Abort`: none of these ids is known to scheduler or worker any more."""

    uids: list[str]
    token: int


class Acknowledged(msgspec.Struct, tag=True, frozen=True):
    """Answer to `Sleep` and `Wake`; `error` if it could not be done."""

    token: int
    bytes_freed: int = 0
    error: ErrorInfo | None = None


class Inspection(msgspec.Struct, tag=True, frozen=True):
    """Answer to `Inspect`.

    All counts are 0 (free_blocks: num_blocks minus the null block) when nothing is alive.
    """

    token: int
    requests: int
    gated: int
    free_blocks: int
    total_blocks: int
    worker_requests: int
    connector_entries: int
    steps: int
    error: ErrorInfo | None = None
    edges: dict[str, BudgetStatistics] = {}  # what each outgoing edge has under way
    gate: GateStatistics | None = None  # what waits, and how waits have ended so far
    handoffs: HandoffStatistics | None = None  # of a stage whose KV caches another one takes
    integrity_failures: int = 0  # checks that failed while the stage was idle


class Measured(msgspec.Struct, tag=True, frozen=True):
    """Answer to `Measure`: what is now, and counters since the stage started."""

    token: int
    steps: int
    gate: GateStatistics
    edges: dict[str, BudgetStatistics] = {}  # outgoing
    handoffs: HandoffStatistics | None = None  # of a stage whose KV caches another one takes
    engine: list[Family] = []  # vLLM's own; of a stage that keeps them
    integrity_failures: int = 0  # checks that failed while the stage was idle


class Pong(msgspec.Struct, tag=True, frozen=True):
    """Answer to `Ping`: seconds that the step or command under way has taken, 0 if there is none.

    One that overlaps computing says it of the call that the stage's thread is in.
    """

    busy_s: float


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The stage could not start or cannot go on; it ends after this message."""

    error: ErrorInfo


class Stopped(msgspec.Struct, tag=True, frozen=True):
    """The engine is shut down; the last message."""


Event = (
    Starting
    | Ready
    | Step
    | Interrupted
    | Aborted
    | Acknowledged
    | Inspection
    | Measured
    | Pong
    | Failed
    | Stopped
)
