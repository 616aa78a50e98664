"""A stage whose requests hand their KV cache over: its worker copies blocks, stores and answers.

The cache is played: a cell per position of a block says which token was computed into it. So an
order is judged by what the blocks really hold when the copy is made, not by their numbers alone.
"""

from __future__ import annotations

from typing import Any, Literal

from sched_core import Done
from sched_engine import NULL_BLOCK, Stage
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from antiphon.core.budget import EdgeLimits
from antiphon.core.kv_handoff import KvSettings, KvTransfer, num_blocks
from antiphon.core.options import OutEdge
from antiphon.core.tickets import KvAck, KvShip
from antiphon.errors import ConnectorError, ErrorInfo
from antiphon.payload.ref import Ref
from antiphon.sched.ar import ARScheduler
from antiphon.sched.events import HandoffStatistics
from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.testing.clock import ManualClock
from antiphon.upstream.envelopes import work_of

KV = "cache"
Answer = Literal["ok", "fail", "keep"]  # keep: the test answers, or nobody

PREFILL = KvTransfer("prefill_finished")


def special(token_id: int, **kw: Any) -> KvTransfer:
    return KvTransfer("special_token", token_id=token_id, **kw)


class KvStage(Stage):
    """With an outgoing KV edge; all of its requests feed it unless told otherwise."""

    def __init__(
        self,
        cls: type[StageSchedulerMixin] = ARScheduler,
        transfer: KvTransfer = PREFILL,
        settings: KvSettings | None = None,
        *,
        clock: ManualClock | None = None,
        kv_limits: EdgeLimits | None = None,
        more: tuple[OutEdge, ...] = (),
        **kw: Any,
    ) -> None:
        self.clock = clock or ManualClock()
        limits = kv_limits or EdgeLimits()
        edge = OutEdge(KV, "", limits=limits, kv=transfer, kv_settings=settings or KvSettings())
        super().__init__(cls, clock=self.clock, outputs=(edge, *more), **kw)
        self.answer: Answer = "ok"  # what the worker does with the next orders
        self.ships: list[KvShip] = []
        self.stored: set[str] = set()  # keys that the connector has
        self.heard: list[str] = []  # what the host heard, in order: "ready a", "end a", …
        self.late: dict[str, ErrorInfo] = {}  # errors of requests that had ended before
        self._cells: dict[int, list[int | None]] = {}  # block: the tokens computed into it

    def submit(self, uid: str, n: int = 10, *, hands_over: bool = True, **kw: Any) -> Request:
        if hands_over:
            kw["edges"] = (*kw.get("edges", ()), KV)
        return super().submit(uid, n, **kw)

    # --- the host -----------------------------------------------------------------------------

    def step(self, *args: Any, **kw: Any) -> Done:
        sent = len(self.sent)
        done = super().step(*args, **kw)
        self.heard += [f"ready {ref.uid}" for ref in self.sent[sent:] if ref.edge == KV]
        self.heard += [f"end {out.request_id}" for out in done if out.finish_reason is not None]
        return done

    def abort(self, *uids: str) -> None:
        alive = [uid for uid in uids if uid in self.scheduler.requests]
        super().abort(*uids)
        self.heard += [f"end {uid}" for uid in alive]

    def _collect(self) -> tuple[dict[str, ErrorInfo], dict[str, int]]:
        errors, ended = super()._collect()
        self.late |= {uid: info for uid, info in errors.items() if self.ends(uid)}
        return errors, ended

    def again(self, uid: str, n: int = 20, **kw: Any) -> Request:
        """The id of a request that is over is used for another one."""
        self.finished.remove(uid)
        return self.submit(uid, n, **kw)

    def take(self, ref: Ref) -> None:
        """The consumer has the cache."""
        assert ref.key is not None
        self.stored.remove(ref.key)
        self.sent.remove(ref)
        self.scheduler.used(KV, [ref.key])

    def abandon(self, uid: str) -> None:
        """The host is told to abort a request that may have ended here."""
        if uid in self.scheduler.requests:
            self.abort(uid)
        self.scheduler.abandon([uid])

    @property
    def statistics(self) -> HandoffStatistics:
        found = self.scheduler.handoffs.statistics()
        assert found is not None
        return found

    def shipped(self, uid: str) -> list[KvShip]:
        return [ship for ship in self.ships if ship.uid == uid]

    def ready(self, uid: str) -> list[Ref]:
        return [ref for ref in self.sent if ref.uid == uid]

    # --- the worker ---------------------------------------------------------------------------

    def ack(self, ship: KvShip, *, ok: bool = True, twice: bool = False) -> None:
        """Answer an order with the next step, for which there is a reason then."""
        answer = self._store(ship) if ok else self._refuse(ship)
        self.worker.acks += [answer, answer] if twice else [answer]
        self.scheduler.coordinator.discard(["nothing"])

    def run(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        work = work_of(scheduled)
        for ship in [] if work is None else work.ships:
            self._judge(ship)
            self.ships.append(ship)
            if self.answer != "keep":
                made = self._store(ship) if self.answer == "ok" else self._refuse(ship)
                self.worker.acks.append(made)
        self.stored.difference_update([] if work is None else work.discards)
        output = super().run(scheduled)
        self._compute(scheduled)
        return output

    def _store(self, ship: KvShip) -> KvAck:
        key = f"{ship.uid}/{ship.edge}/{ship.epoch}/kv{ship.generation}"
        self.stored.add(key)
        ref = Ref(ship.uid, ship.edge, 0, True, key=key, nbytes=8, epoch=ship.epoch)
        return KvAck(ship.uid, ship.generation, ref)

    def _refuse(self, ship: KvShip) -> KvAck:
        return KvAck(ship.uid, ship.generation, error=ConnectorError("no room").to_wire())

    @property
    def _sizes(self) -> list[int]:
        groups = self.scheduler.kv_cache_config.kv_cache_groups
        return [group.kv_cache_spec.block_size for group in groups]

    def _judge(self, ship: KvShip) -> None:
        """Every block that is named holds what it should, in every group."""
        assert 0 < ship.length <= len(ship.token_ids) <= ship.length + 1
        assert len(ship.block_ids) == len(self._sizes)
        for blocks, size in zip(ship.block_ids, self._sizes, strict=True):
            assert len(blocks) == num_blocks(ship.length, size)
            assert any(blocks), "nothing is left of the cache"
            for position in range(ship.length):
                if (block := blocks[position // size]) != NULL_BLOCK:
                    cell = self._cells[block][position % size]
                    assert cell == ship.token_ids[position], f"{ship.uid} at {position}"

    def _compute(self, scheduled: SchedulerOutput) -> None:
        """What the step's forward writes."""
        manager = self.scheduler.kv_cache_manager
        for uid, count in scheduled.num_scheduled_tokens.items():
            request = self.scheduler.requests[uid]
            tables = list(zip(manager.get_block_ids(uid), self._sizes, strict=True))
            stop = request.num_computed_tokens
            for position in range(stop - count, stop):
                known = position < request.num_tokens
                token = request.all_token_ids[position] if known else self.token(uid, position)
                for table, size in tables:
                    cells = self._cells.setdefault(table[position // size], [None] * size)
                    cells[position % size] = token

    # --- what must hold -----------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        stats = self.statistics
        assert stats.held_blocks == len(self.scheduler.handoffs.held_blocks())
        assert (stats.active > 0) <= (stats.held_blocks > 0)

    def check_over(self) -> None:
        """Every request is over, and so are its blocks, its key and its hand-off."""
        self.check_empty()
        assert not self.scheduler.handoffs.holding
        assert self.stored == {ref.key for ref in self.sent if ref.key is not None}
        assert self.statistics.leased == len(self.stored)
