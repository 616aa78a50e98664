"""The life of a KV-cache transfer out of a stage: from its trigger to the freed blocks.

    IDLE ──criterion met──▶ MARKED ──ship──▶ ACTIVE ──ack──▶ DONE
      │                        │                └─ack with a reason, deadline──▶ FAILED
      └─cannot be met──▶ FAILED└─abort──▶ FAILED

The request's blocks are held from the mark on, whatever becomes of the request meanwhile (it may
finish, be aborted, or lose its own hold by a preemption), and let go once: at the acknowledgement,
at its deadline, or when an abort cancels what has not been shipped. So a snapshot never names a
block that somebody else writes.

Pure: events in, actions out. The clock, the blocks and the messages are the scheduler's.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from antiphon.errors import TopologyError

Criterion = Literal["prefill_finished", "special_token", "request_finished"]
_CRITERIA: tuple[str, ...] = get_args(Criterion)


class KvTransfer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a request's cache leaves its stage. Raises TopologyError for what makes no sense."""

    type: Criterion
    """prefill_finished: the whole prompt has been computed. special_token: `token_id` has been
    sampled. request_finished: the request has ended by itself."""

    token_id: int | None = None
    """The token of special_token; the snapshot covers what stands before it."""

    stop_after_transfer: bool = True
    """End the request (finish reason stop) once its cache has been handed over."""

    park: bool = True
    """Pass the request over between mark and acknowledgement instead of decoding tokens that will
    be thrown away; only with stop_after_transfer."""

    def __post_init__(self) -> None:
        if self.type not in _CRITERIA:
            names = ", ".join(_CRITERIA)
            raise TopologyError(f"kv type {self.type!r} is unknown; use one of {names}")
        for name in ("stop_after_transfer", "park"):
            if type(value := getattr(self, name)) is not bool:
                raise TopologyError(f"kv {name} is {value!r}; give true or false")
        wants = self.type == "special_token"
        if wants and (type(self.token_id) is not int or self.token_id < 0):
            raise TopologyError(f"kv token_id is {self.token_id!r}; special_token needs a token id")
        if not wants and self.token_id is not None:
            raise TopologyError(f"kv token_id has no meaning with {self.type}; remove it")

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> KvTransfer:
        """From plain data. Raises TopologyError for unknown keys, and for values of wrong types."""
        keys = cls.__struct_fields__
        if not isinstance(data, Mapping):
            raise TopologyError(f"kv is {data!r}; give a mapping of {', '.join(keys)}")
        for key in data:
            if key not in keys:
                raise TopologyError(f"kv has no key {key!r}; its keys are {', '.join(keys)}")
        if "type" not in data:
            raise TopologyError(f"kv has no type; use one of {', '.join(_CRITERIA)}")
        return cls(**data)


class KvSettings(msgspec.Struct, frozen=True):
    """How an operator runs the transfers of one edge. Times in seconds, 0 waits for ever."""

    on_failure: Literal["fail", "recompute"] = "fail"  # recompute: the consumer computes it itself
    ack_timeout_s: float = 60.0  # from ship to acknowledgement; then the blocks are let go
    lease_s: float = 600.0  # that a stored cache is kept for a consumer that has not taken it
    checksum: bool = False  # of the bytes that cross, verified before a cache is touched

    def repeatable(self, salt: str | None) -> bool:
        """Whether the consumer may compute a lost cache from its token ids: not where the salt of
        its prefix-cache keys says that the ids are not all of the prompt.
        """
        return self.on_failure == "recompute" and salt is None


class KvState(enum.Enum):
    """Of one hand-off; it only ever goes on to a later one."""

    IDLE = "idle"  # the criterion has not been met
    MARKED = "marked"  # to be shipped with the next step
    ACTIVE = "active"  # a worker copies the blocks
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Mark:
    """Hold the blocks of the request's first `length` tokens, and ship them with the next step."""

    length: int


@dataclass(frozen=True, slots=True)
class EmitReady:
    """The cache is stored: announce it."""


@dataclass(frozen=True, slots=True)
class EmitFailed:
    """There will be no cache, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the request, which still runs, as if it had stopped by itself."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The request is over; its blocks stay held until the acknowledgement."""


@dataclass(frozen=True, slots=True)
class Free:
    """Let go of the held blocks."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nothing is shipped, or what was shipped is wanted by nobody."""


Action = Mark | EmitReady | EmitFailed | Stop | Hold | Free | Cancel


@dataclass(slots=True)
class KvHandoff:
    """One request's hand-off. Every event may come in every state; what is late changes nothing."""

    transfer: KvTransfer
    num_prompt_tokens: int
    state: KvState = KvState.IDLE
    finished: bool = False
    aborted: bool = False
    length: int | None = None  # tokens of the snapshot, once the criterion has been met

    @property
    def stops(self) -> bool:
        """Whether tokens after the trigger are for nobody: the request ends with the transfer."""
        return self.transfer.stop_after_transfer and self.length is not None

    @property
    def parks(self) -> bool:
        """Whether the request is to be passed over for now."""
        pending = self.state in (KvState.MARKED, KvState.ACTIVE)
        return self.stops and self.transfer.park and pending and not self.finished

    def wanted(self, num_tokens: int, new_ids: Sequence[int]) -> int | None:
        """Tokens of the snapshot that `new_ids`, sampled after `num_tokens` tokens, ask for."""
        match self.transfer.type:
            case "prefill_finished" if new_ids:
                return self.num_prompt_tokens
            case "special_token" if self.transfer.token_id in new_ids:
                return num_tokens + new_ids.index(self.transfer.token_id)
        return None

    # --- events -------------------------------------------------------------------------------

    def tokens(self, num_tokens: int, new_ids: Sequence[int], confirmed: int) -> list[Action]:
        """The request, which had `num_tokens`, has accepted `new_ids`; `confirmed` are computed.

        The request's blocks may hold less than the snapshot needs, after a preemption: then it is
        marked with a later token, when they have been computed again.
        """
        if self.state is not KvState.IDLE or self.finished:
            return []
        if self.length is None:
            self.length = self.wanted(num_tokens, new_ids)
        if self.length is None or confirmed < self.length:
            return []
        return self._mark(self.length)

    def ship(self) -> bool:
        """The next step takes the order along; whether there is one."""
        if self.state is not KvState.MARKED:
            return False
        self.state = KvState.ACTIVE
        return True

    def ack(self, reason: str | None = None) -> list[Action]:
        """The worker has answered: stored, or why not."""
        if self.state is not KvState.ACTIVE:
            return []  # late, or a repeat
        if reason is not None:
            return self._fail(reason)
        self.state = KvState.DONE
        if self.aborted:
            return [Cancel(), Free()]
        stops = [] if self.finished or not self.transfer.stop_after_transfer else [Stop()]
        return [EmitReady(), Free(), *stops]

    def finish(self, *, kept: bool, num_tokens: int, confirmed: int) -> list[Action]:
        """The request has ended with `num_tokens`, by itself (`kept`) or by an abort or error.

        An abort may also come behind the end, while blocks are held: then nobody wants them.
        """
        if self.aborted:
            return []
        ended, self.finished, self.aborted = self.finished, True, not kept
        if self.state is KvState.IDLE:
            return self._finish_idle(num_tokens, confirmed) if kept else []
        if self.state is KvState.MARKED and not kept:
            self.state = KvState.FAILED
            return [Cancel(), Free()]
        return [Hold()] if self.holds and not ended else []

    def _finish_idle(self, num_tokens: int, confirmed: int) -> list[Action]:
        if self.transfer.type == "request_finished":
            self.length = num_tokens - 1  # the last sampled token was never fed back
        if self.length is None:
            return []
        if confirmed >= self.length > 0:
            return [*self._mark(self.length), Hold()]
        return self._fail("the request lost its blocks before they could be shipped")

    def expire(self, reason: str) -> list[Action]:
        """The acknowledgement has not come in time."""
        return self._fail(reason) if self.state is KvState.ACTIVE else []

    # --- parts --------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether nothing more can come of it."""
        settled = self.state in (KvState.DONE, KvState.FAILED)
        return self.finished and (settled or self.state is KvState.IDLE)

    @property
    def holds(self) -> bool:
        """Whether the request's blocks are held for it."""
        return self.state in (KvState.MARKED, KvState.ACTIVE)

    def _mark(self, length: int) -> list[Action]:
        self.state = KvState.MARKED
        return [Mark(length)]

    def _fail(self, reason: str) -> list[Action]:
        held = self.holds
        self.state = KvState.FAILED
        told: list[Action] = [] if self.aborted else [EmitFailed(reason)]
        return [*told, *([Free()] if held else [])]


def num_blocks(length: int, block_size: int) -> int:
    """Blocks that hold `length` tokens. Raises ValueError for sizes that cannot be."""
    if length < 0 or block_size <= 0:
        raise ValueError(f"{length} tokens in blocks of {block_size}")
    return -(-length // block_size)


def cut_blocks(
    block_ids: Sequence[Sequence[int]], block_sizes: Sequence[int], length: int
) -> tuple[tuple[int, ...], ...]:
    """Of each KV group's blocks those that hold the first `length` tokens, in order.

    Raises ValueError if a group has fewer.
    """
    cut = []
    for ids, size in zip(block_ids, block_sizes, strict=True):
        needed = num_blocks(length, size)
        if len(ids) < needed:
            raise ValueError(
                f"{length} tokens need {needed} blocks of {size}, there are {len(ids)}"
            )
        cut.append(tuple(ids[:needed]))
    return tuple(cut)
