"""Chunks in any order at one generation stage: how long each request takes, on a clock by hand."""

from __future__ import annotations

import random
from statistics import quantiles

import pytest
from sched_engine import Stage, plan

from antiphon.sched.generation import GenerationScheduler
from antiphon.testing.clock import ManualClock

REQUESTS = 120
CHUNKS = 5  # of four tokens each
STEP_S, TOKEN_S = 0.002, 0.0005


def _deliveries(rng: random.Random) -> list[tuple[float, str, int]]:
    """(time, uid, number): chunks and, as the last number, the end; each is late by its own."""
    found = []
    for number in range(REQUESTS):
        for seq in range(CHUNKS + 1):
            late = rng.expovariate(5.0)
            if number % 50 == 7 and seq == 1:
                late += 5.0  # one chunk is very late: its own request waits
            found.append((number * 0.03 + seq * 0.02 + late, f"r{number}", seq))
    return sorted(found)


@pytest.mark.parametrize("seed", range(2))
def test_no_request_pays_for_the_disorder_of_others(seed: int) -> None:
    """C107: from the arrival of its last chunk each takes about as long as any other."""
    clock = ManualClock()
    stage = Stage(GenerationScheduler, clock=clock, max_num_seqs=16, max_num_batched_tokens=64)
    deliveries = _deliveries(random.Random(seed))
    complete: dict[str, float] = {}  # when all of it had arrived
    took: dict[str, float] = {}
    for number in range(REQUESTS):
        stage.submit(f"r{number}", stream=True)
    while deliveries or stage.has_work:
        if not stage.has_work:
            clock.advance(max(0.0, deliveries[0][0] - clock()))
        while deliveries and deliveries[0][0] <= clock():
            at, uid, seq = deliveries.pop(0)
            complete[uid] = at
            if seq == CHUNKS:
                stage.deliver_nothing(uid, seq=seq)
            else:
                stage.deliver(uid, plan(*[1] * 4), seq=seq, end=False)
        done = stage.step()
        if done.scheduled is not None:
            clock.advance(STEP_S + TOKEN_S * done.scheduled.total_num_scheduled_tokens)
        for out in done:
            if out.finish_reason is not None:
                took[out.request_id] = clock() - complete[out.request_id]
    assert len(took) == REQUESTS
    percentiles = quantiles(took.values(), n=100)
    assert percentiles[98] < 10 * percentiles[49], (percentiles[98], percentiles[49])
    assert max(took.values()) < 20 * percentiles[49]
    stage.check_empty()
