"""AR-INV-001: with no stage feature in use, the stage's schedulers do what vLLM's own do.

Stock scheduler and ours run in lockstep through random workloads: arrivals at any time, chunked
prefill by small budgets, shared prefixes, preemption by tiny pools, aborts before and during steps,
cache resets, stop tokens, priorities, logprobs; synchronously and with two batches in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from sched_lockstep import Lockstep, Mismatch, Workload, workloads
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from antiphon.sched.ar import ARScheduler, AsyncARScheduler

KINDS: dict[str, tuple[type[Scheduler], type[Scheduler], bool]] = {
    "sync": (Scheduler, ARScheduler, False),
    "async": (AsyncScheduler, AsyncARScheduler, True),
}
CASES_PER_TEST = 25
SHARDS = 5  # 2 kinds x 2 policies x 5 shards x 25 cases = 500
SLOW_CASES = 5000  # per kind and policy: 20,000 in all


@dataclass
class Tally:
    """What the cases have really exercised."""

    cases: int = 0
    preempted: int = 0
    hit: int = 0
    ended: int = 0

    def add(self, lockstep: Lockstep) -> None:
        self.cases += 1
        self.preempted += lockstep.preemptions > 0
        self.hit += lockstep.hits > 0
        self.ended += lockstep.ends


def explore(
    kind: str,
    policy: str,
    cases: int,
    number: int,
    *,
    routed: bool = False,
    tested: type[Scheduler] | None = None,
    phases: tuple[Phase, ...] = (Phase.generate, Phase.shrink),
) -> Tally:
    """Run `cases` workloads; `number` makes them others than those of another call."""
    stock, ours, overlap = KINDS[kind]
    tally = Tally()

    @seed(f"{kind} {policy} {number}")
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    @given(workloads())
    def in_lockstep(workload: Workload) -> None:
        lockstep = Lockstep(
            stock, tested or ours, workload, overlap=overlap, policy=policy, routed=routed
        )
        lockstep.run()
        tally.add(lockstep)

    in_lockstep()
    return tally


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_equals_the_stock_schedulers(kind: str, policy: str, shard: int) -> None:
    tally = explore(kind, policy, CASES_PER_TEST, shard)
    assert tally.cases >= CASES_PER_TEST


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("kind", KINDS)
def test_outgoing_edges_change_no_decision(kind: str, policy: str) -> None:
    """And the worker hears of every accepted token once and in order, the last one included:
    over preemption, aborts, and with two batches in flight."""
    tally = explore(kind, policy, 50, 300, routed=True)
    assert tally.cases >= 50


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_thousand_cases(kind: str, policy: str, record_property: Callable[..., Any]) -> None:
    tally = explore(kind, policy, SLOW_CASES, 1000)
    record_property("tally", str(tally))
    print(kind, policy, tally)
    assert tally.cases >= SLOW_CASES


@pytest.mark.parametrize("kind", KINDS)
def test_the_workloads_reach_what_they_are_for(kind: str) -> None:
    """Preemption and prefix-cache hits are part of many cases, and requests come to their end."""
    tally = explore(kind, "fcfs", CASES_PER_TEST, 77)
    assert tally.preempted >= tally.cases // 10
    assert tally.hit >= tally.cases // 10
    assert tally.ended >= 2 * tally.cases


# --- negative controls: a difference is found -----------------------------------------------------


class JumpsTheQueue(ARScheduler):
    """The newest request is served first."""

    def _enqueue_waiting_request(self, request: Request) -> None:
        self.waiting.prepend_request(request)


class ForgetsEnds(ARScheduler):
    """The worker is not told of ended requests."""

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        output = super().schedule(throttle_prefills)
        output.finished_req_ids = set()
        return output


class HoldsBack(ARScheduler):
    """Every fourth step gives one token less to prefills."""

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        full = self.max_num_scheduled_tokens
        self.max_num_scheduled_tokens = full - (self.current_step % 4 == 3)
        try:
            return super().schedule(throttle_prefills)
        finally:
            self.max_num_scheduled_tokens = full


class AsksTheCacheTwice(ARScheduler):
    """Only the cache's statistics differ."""

    def _enqueue_waiting_request(self, request: Request) -> None:
        super()._enqueue_waiting_request(request)
        if self.cache_config.enable_prefix_caching:
            self.kv_cache_manager.record_prefix_cache_stats(request, 0)


@pytest.mark.parametrize(
    ("tested", "where"),
    [
        (JumpsTheQueue, "scheduled_new_reqs|order|queue"),
        (ForgetsEnds, "finished_req_ids"),
        (HoldsBack, "num_scheduled_tokens|scheduled_new_reqs"),
        (AsksTheCacheTwice, "scheduler_stats"),
    ],
)
def test_a_scheduler_that_differs_is_caught(tested: type[Scheduler], where: str) -> None:
    with pytest.raises(Mismatch, match=where):
        explore("sync", "fcfs", 60, 5, tested=tested, phases=(Phase.generate,))
