"""A stage in the middle of a pipeline: caches come in, and leave with what was computed on top."""

from __future__ import annotations

import pytest
from sched_core import sampled
from sched_engine import plan
from sched_kv import KvStage
from sched_worker import Given
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import ModelRunnerOutput

from antiphon.core.kv_handoff import KvSettings
from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.upstream.kv_connector import CacheLoads

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])
GIVEN = Given(plan(*range(1, 41)), cached=39)
SHIPPED_AFTER = {ARScheduler: 3, AsyncARScheduler: 5}  # steps


class Middle(KvStage):
    """What is loaded lies in its blocks from that step on."""

    def run(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        orders = scheduled.kv_connector_metadata
        assert orders is None or isinstance(orders, CacheLoads)
        for load in [] if orders is None else orders.loads:
            tokens = self.scheduler.requests[load.uid].prompt_token_ids
            assert tokens is not None
            for position in range(load.first, load.stop):
                for table, size in zip(load.block_ids, self._sizes, strict=True):
                    cells = self._cells.setdefault(table[position // size], [None] * size)
                    cells[position % size] = tokens[position]
        return super().run(scheduled)


def middle(cls: type[ARScheduler]) -> Middle:
    stage = Middle(cls, settings=KvSettings(ack_timeout_s=5.0), loads_caches=True)
    stage.answer = "keep"
    return stage


@BOTH
def test_a_cache_that_came_leaves_again(cls: type[ARScheduler]) -> None:
    """What was loaded and what was computed, in one."""
    stage = middle(cls)
    stage.submit("a", gated=True, max_tokens=3)
    stage.deliver("a", GIVEN)
    stage.until(lambda: stage.ships)
    (ship,) = stage.ships
    assert (ship.length, ship.token_ids[:40]) == (40, tuple(range(1, 41)))
    stage.ack(ship)
    stage.drain()
    assert stage.heard == ["ready a", "end a"]
    stage.check_over()


@BOTH
@pytest.mark.parametrize("ok", [True, False, None], ids=["stored", "failed", "lost"])
@pytest.mark.parametrize("steps", range(7))
def test_an_abort_between_the_two_transfers(
    cls: type[ARScheduler], steps: int, ok: bool | None
) -> None:
    """C6: the cache is expected, has come, is about to leave, or leaves: its blocks come back once,
    with the answer or without, and the id can be used again.
    """
    stage = middle(cls)
    stage.submit("other", 20, hands_over=False, max_tokens=12)
    stage.submit("a", gated=True, max_tokens=3)
    stage.deliver("a", GIVEN)
    for _ in range(steps):
        stage.step()
    assert bool(stage.ships) == (steps >= SHIPPED_AFTER[cls])
    stage.abort("a")
    stage.drain()
    for ship in stage.ships:
        if ok is not None:
            stage.ack(ship, ok=ok, twice=True)
    if ok is None:
        stage.clock.advance(5.0)
    stage.drain()
    for ship in stage.ships:  # after its time, or once more
        stage.ack(ship, ok=False)
    stage.drain()
    assert stage.ends("a") == [FinishReason.ABORT]
    assert stage.outcomes["other"].tokens == sampled("other", 20, 12)
    assert stage.late == {}
    stage.check_over()
    stage.again("a", gated=True, max_tokens=3)
    stage.answer = "ok"
    stage.deliver("a", GIVEN)
    stage.drain()
    assert stage.heard[-2:] == ["ready a", "end a"]
    stage.check_over()
