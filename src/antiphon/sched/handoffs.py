"""KV caches that leave the stage: what is held for each, shipped, acknowledged and kept for a
consumer.

One record per request whose ticket names the stage's KV edge. It is made with the first sampled
token, when the prompt is final, and goes when the request has ended and nothing more can come of
its hand-off. When to do what is `KvHandoff`'s decision; here it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from antiphon.core.deadlines import Deadlines
from antiphon.core.kv_handoff import (
    Action,
    EmitFailed,
    EmitReady,
    Free,
    KvHandoff,
    KvSettings,
    KvState,
    Mark,
    Stop,
)
from antiphon.core.options import OutEdge
from antiphon.core.tickets import KvAck, KvShip
from antiphon.errors import KVTransferError
from antiphon.payload.ref import Ref
from antiphon.sched.block_holds import BlockHolds, check_holds, distinct
from antiphon.sched.coordinator import Coordinator
from antiphon.sched.events import HandoffStatistics
from antiphon.sched.handoff_record import Ending, Record, confirmed
from antiphon.sched.leases import Leases
from antiphon.sched.parking import Parking


@dataclass(slots=True)
class _Counts:
    marked: int = 0
    shipped: int = 0
    ready: int = 0
    failed: int = 0
    cancelled: int = 0
    late_acks: int = 0
    store_s: float = 0.0


class Handoffs:
    """The hand-offs of one stage; `enabled` says whether it has a KV edge. Without one there is
    nothing to do, and its scheduler does not ask in every step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        coordinator: Coordinator,
        parking: Parking,
        clock: Callable[[], float],
        edges: Iterable[OutEdge] = (),
        *,
        stage: str = "",
        has_left: Callable[[str], None] = lambda uid: None,
    ) -> None:
        self._scheduler = scheduler
        self._has_left = has_left  # told of each whose blocks are held no more
        self._coordinator = coordinator
        self._parking = parking
        self._clock = clock
        self._stage = stage
        edge = next((edge for edge in edges if edge.kv is not None), None)
        self._edge = "" if edge is None else edge.name
        self._transfer = None if edge is None else edge.kv
        self.enabled = edge is not None
        self._settings = KvSettings() if edge is None else edge.kv_settings
        self._holds = BlockHolds(scheduler)
        self._records: dict[str, Record] = {}
        self._marked: dict[str, Record] = {}  # to be shipped with the next step
        self._acks = Deadlines(clock)  # by uid: answers that are waited for
        self._generation = 0  # of the newest order
        self._counts = _Counts()
        self.leases = Leases(clock, self._settings.lease_s)
        coordinator.handing_over = self._records

    # --- the request's own events -------------------------------------------------------------

    def of(self, request: Request) -> Record | None:
        """The record of a request that samples now; None if its cache is not wanted."""
        if self._transfer is None:
            return None
        uid = request.request_id
        record = self._records.get(uid)
        if record is None and self._coordinator.feeds(uid, self._edge):
            handoff = KvHandoff(self._transfer, request.num_prompt_tokens)
            record = self._records[uid] = Record(uid, self._coordinator.epoch(uid), handoff)
        return record

    def accepted(self, record: Record, request: Request, new_ids: list[int], *, cut: bool) -> None:
        """The request has accepted `new_ids`; `cut`: its worker has sampled more."""
        handoff = record.handoff
        num_tokens = request.num_tokens - len(new_ids)
        self._carry_out(record, handoff.tokens(num_tokens, new_ids, confirmed(request)))
        if handoff.parks or (cut and handoff.holds):
            self._pass_over(record, request)

    def surplus(self, record: Record, request: Request, new_ids: list[int]) -> None:
        """`new_ids` come after the trigger of a request that ends with it: they are dropped.

        To upstream they stay tokens whose result has not come, so its counts agree. In a request
        that was preempted before its blocks could be held they tell that these have been computed
        again.
        """
        handoff = record.handoff
        actions = handoff.tokens(request.num_tokens, new_ids, confirmed(request))
        self._carry_out(record, actions)
        if handoff.holds:
            self._pass_over(record, request)  # parked or not: it has no token to go on with

    def without_repeats(self, output: ModelRunnerOutput) -> None:
        """Drop the prompt logprobs of requests that are computed again to be handed over: they
        have been reported, and upstream takes none without a token.
        """
        for found in (output.prompt_logprobs_dict, output.prompt_token_id_logprobs_dict):
            for uid in found.keys() & self._records.keys():
                if self._records[uid].handoff.stops:
                    del found[uid]

    def preempted(self, request: Request) -> bool:
        """Upstream took the request's blocks; whether it need not be computed again, since what
        is wanted of it is held.
        """
        record = self._records.get(request.request_id)
        if record is None or not (record.handoff.stops and record.handoff.holds):
            return False
        self._pass_over(record, request)
        return True

    def ended(self, request: Request, *, kept: bool) -> None:
        """The request ends, by itself (`kept`) or by an abort or error.

        To be called while coordinator and upstream still know it, and its blocks are there.
        """
        record = self._records.get(request.request_id)
        if record is None:
            return
        record.passed_over = False
        actions = record.handoff.finish(
            kept=kept, num_tokens=request.num_tokens, confirmed=confirmed(request)
        )
        self._carry_out(record, actions)

    def abandon(self, uids: Iterable[str]) -> None:
        """These requests are over on every stage: nobody waits for the caches of ended ones."""
        for uid in uids:
            if (record := self._records.get(uid)) is not None:
                actions = record.handoff.finish(kept=False, num_tokens=0, confirmed=0)
                self._carry_out(record, actions)

    # --- orders, answers, time ----------------------------------------------------------------

    def ship(self) -> list[KvShip]:
        """The orders for the step that has just been scheduled: their answers are waited for."""
        ships = []
        for record in self._marked.values():
            record.handoff.ship()
            self._generation += 1
            ships.append(record.order(self._edge, self._generation))
            self._acks.start(record.uid, self._settings.ack_timeout_s)
        self._counts.shipped += len(ships)
        self._marked.clear()
        return ships

    def acknowledged(self, acks: Iterable[KvAck]) -> list[Ending]:
        """What the worker has answered; requests that end by it."""
        endings = []
        for ack in acks:
            record = self._records.get(ack.uid)
            if record is None or record.generation != ack.generation or ack.uid not in self._acks:
                self._late(ack)
                continue
            reason = None
            if ack.ref is None:
                reason = "nothing was stored" if ack.error is None else ack.error.message
            endings += self._carry_out(record, record.handoff.ack(reason), ack.ref)
        return endings

    def expire(self) -> list[Ending]:
        """Give up answers and leases whose time has run out; requests that end by it."""
        endings = []
        for timer in self._acks.expired():
            record = self._records[timer.key]
            reason = (
                f"the worker has not answered for {timer.waited_s:.1f} s; raise ack_timeout_s or "
                f"look at the stage's log"
            )
            endings += self._carry_out(record, record.handoff.expire(reason))
        if keys := self.leases.expired():
            self._coordinator.discard(keys)
        return endings

    @property
    def due(self) -> bool:
        """Whether `expire` has something to do."""
        due = self.next_due()
        return due is not None and due <= self._clock()

    def next_due(self) -> float | None:
        """Value of the clock at which the next answer or lease runs out, None if none can."""
        if self._transfer is None:
            return None
        dues = [due for due in (self._acks.next_due(), self.leases.next_due()) if due is not None]
        return min(dues, default=None)

    # --- questions ----------------------------------------------------------------------------

    @property
    def to_ship(self) -> bool:
        """Whether the next step has orders to take along."""
        return bool(self._marked)

    @property
    def holding(self) -> bool:
        """Whether any block is held."""
        return bool(self._marked) or len(self._acks) > 0

    def holds(self, uids: Iterable[str]) -> bool:
        """Whether any block is held for one of these requests."""
        return any(uid in self._marked or uid in self._acks for uid in uids)

    def num_held(self, uid: str) -> int:
        """How many blocks are held for this request."""
        record = self._records.get(uid)
        return 0 if record is None else len(distinct(record.blocks))

    def passes_over(self, uid: str) -> bool:
        """Whether the request is parked until it ends."""
        record = self._records.get(uid)
        return record is not None and record.passed_over

    def held_blocks(self) -> set[int]:
        """The numbers of all blocks that are held."""
        return {number for record in self._records.values() for number in distinct(record.blocks)}

    def statistics(self) -> HandoffStatistics | None:
        """None if the stage has no KV edge."""
        if self._transfer is None:
            return None
        counts = self._counts
        return HandoffStatistics(
            marked=counts.marked,
            shipped=counts.shipped,
            ready=counts.ready,
            failed=counts.failed,
            cancelled=counts.cancelled,
            late_acks=counts.late_acks,
            active=len(self._acks),
            held_blocks=len(self.held_blocks()),
            leased=len(self.leases),
            leases_expired=self.leases.num_expired,
            store_s=counts.store_s,
        )

    # --- parts --------------------------------------------------------------------------------

    def _carry_out(
        self, record: Record, actions: Iterable[Action], ref: Ref | None = None
    ) -> list[Ending]:
        """Do what the hand-off has decided. `ref`: what the worker has stored."""
        endings = []
        for action in actions:
            match action:
                case Mark(length):
                    record.blocks = self._holds.take(record.uid, length)
                    record.note(self._scheduler.requests[record.uid])
                    self._marked[record.uid] = record
                    record.marked_s = self._clock()
                    self._counts.marked += 1
                case EmitReady() if ref is not None:
                    self._announce(record, ref)
                case EmitFailed(reason):
                    endings += self._failed(record, reason)
                case Free():
                    self._free(record, ref)
                case Stop():
                    endings.append(Ending(record.uid))
        if record.handoff.over:
            del self._records[record.uid]
        return endings

    def _announce(self, record: Record, ref: Ref) -> None:
        """The cache is stored: its consumer hears of it, and has so long to use it up."""
        self._coordinator.sent([ref], None)
        if ref.key is not None:
            self.leases.begin(ref.key)
        self._counts.ready += 1
        self._counts.store_s += self._clock() - record.marked_s

    def _failed(self, record: Record, reason: str) -> list[Ending]:
        """There is no cache: the request fails, or its consumer computes one itself."""
        self._counts.failed += 1
        uid, handoff = record.uid, record.handoff
        if not record.token_ids:  # it has not been marked, so the request has not gone yet
            record.note(self._scheduler.requests[uid])
        if self._settings.repeatable(record.salt):
            self._coordinator.sent([record.lost(self._edge)], None)
            return [Ending(uid)] if handoff.stops and not handoff.finished else []
        error = KVTransferError(
            f"stage '{self._stage}' could not hand over the cache of request {uid}: {reason}"
        )
        if not handoff.finished:
            return [Ending(uid, error)]
        self._coordinator.fail(uid, error)
        self._coordinator.report(uid)
        return []

    def _free(self, record: Record, ref: Ref | None) -> None:
        """Let the blocks go; what nobody waits for any more is freed as well."""
        self._holds.free(record.blocks)
        record.blocks = ()
        self._parking.stalled = False  # there is room
        self._marked.pop(record.uid, None)
        self._acks.clear(record.uid)
        self._has_left(record.uid)
        if record.handoff.aborted:
            self._counts.cancelled += 1
            if ref is not None and ref.key is not None:
                self._coordinator.discard([ref.key])

    def _late(self, ack: KvAck) -> None:
        """Nobody waits for this answer. A repeat names what has been announced, which is kept."""
        self._counts.late_acks += 1
        if ack.ref is not None and ack.ref.key is not None and ack.ref.key not in self.leases:
            self._coordinator.discard([ack.ref.key])

    def _pass_over(self, record: Record, request: Request) -> None:
        record.passed_over = True
        self._parking.hold(request)

    def check_integrity(self) -> None:
        """Raise AssertionError if records, blocks and deadlines disagree."""
        self._acks.check_integrity()
        self.leases.check_integrity()
        for uid, record in self._records.items():
            record.check_integrity()
            state, alive = record.handoff.state, uid in self._scheduler.requests
            if record.handoff.finished == alive:
                raise AssertionError(f"the hand-off of {uid} does not know whether it has ended")
            if record.passed_over and not (record.handoff.holds and uid in self._parking):
                raise AssertionError(f"{uid} is passed over for nothing")
            if (uid in self._marked, uid in self._acks) != (
                state is KvState.MARKED,
                state is KvState.ACTIVE,
            ):
                raise AssertionError(f"{uid} is filed wrongly: its hand-off is {state}")
        if not self._records.keys() >= self._marked.keys() or len(self._acks) > len(self._records):
            raise AssertionError("a hand-off that is gone is waited for")
        check_holds(record.blocks for record in self._records.values())
