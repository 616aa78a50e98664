"""When calls are made: closed loop (the next one when one has ended), or open loop (at a rate).

Arrivals are those of `vllm bench serve`: gamma-distributed pauses, whose shape is the burstiness
and whose mean is one over the rate, a Poisson process at 1; a known number of them is stretched to
take exactly number / rate.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from antiphon.bench.serve_answer import Answer, clock
from antiphon.bench.serve_prompts import Prompt

Ask = Callable[[Prompt, float | None], Awaitable[Answer]]  # (prompt, seconds until it leaves)


@dataclass(frozen=True, slots=True)
class Load:
    """How many calls, and when."""

    num_prompts: int | None  # None: as many as `duration_s` allows
    duration_s: float | None = None  # nothing is sent later; what is under way goes on to its end
    request_rate: float = math.inf  # calls per second; inf: as soon as may be
    burstiness: float = 1.0
    max_concurrency: int | None = None
    disconnect_rate: float = 0.0  # share of callers that leave
    disconnect_within_s: float = 2.0  # they leave at a time drawn evenly from 0 to this
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Watch:
    """Told while a load runs."""

    sent: Callable[[], None] = lambda: None
    ended: Callable[[Answer], None] = lambda answer: None


@dataclass(frozen=True, slots=True)
class Run:
    """All answers, in the order in which the calls were due; start times are from the run's."""

    answers: tuple[Answer, ...]
    duration_s: float


async def run_load(
    ask: Ask, prompts: Sequence[Prompt], load: Load, watch: Watch | None = None
) -> Run:
    """Make the calls, with the prompts in turn; returns when all have ended."""
    watch = Watch() if watch is None else watch
    gate = asyncio.Semaphore(load.max_concurrency or sys.maxsize)
    closed = math.isinf(load.request_rate)
    leaving = leave_times(load)
    began_s = clock()
    tasks: list[asyncio.Task[Answer]] = []

    async def one(prompt: Prompt, leave_after_s: float | None, due_s: float) -> Answer:
        if not closed:
            await gate.acquire()
        try:
            watch.sent()
            queue_s = clock() - began_s - due_s
            answer = await ask(prompt, leave_after_s)
        finally:
            gate.release()
        answer = replace(answer, start_s=answer.start_s - began_s, queue_s=max(0.0, queue_s))
        watch.ended(answer)
        return answer

    async with asyncio.TaskGroup() as group:
        for prompt, due_s in zip(itertools.cycle(prompts), due_times(load), strict=False):
            if closed:
                await gate.acquire()
                due_s = clock() - began_s  # noqa: PLW2901 - due when it may be sent
            if load.duration_s is not None and due_s >= load.duration_s:
                break
            if not closed:
                await asyncio.sleep(began_s + due_s - clock())
            tasks.append(group.create_task(one(prompt, next(leaving), due_s)))
    return Run(tuple(task.result() for task in tasks), clock() - began_s)


def due_times(load: Load) -> Iterator[float]:
    """Seconds from the run's begin; without an end if the number of calls is not given."""
    pauses = _pauses(load)
    if load.num_prompts is None:
        return itertools.accumulate(pauses)
    due = list(itertools.accumulate(itertools.islice(pauses, load.num_prompts)))
    stretch = 1.0
    if due and due[-1] > 0:
        stretch = load.num_prompts / load.request_rate / due[-1]
    return iter([at_s * stretch for at_s in due])


def leave_times(load: Load) -> Iterator[float | None]:
    """For each call how long its caller stays; None is to the end."""
    draw = np.random.default_rng([load.seed, 1])
    while True:
        leaves, after = draw.random(2)
        yield after * load.disconnect_within_s if leaves < load.disconnect_rate else None


def _pauses(load: Load) -> Iterator[float]:
    draw = np.random.default_rng([load.seed, 0])
    while True:
        if math.isinf(load.request_rate):
            yield 0.0
        elif math.isinf(load.burstiness):
            yield 1 / load.request_rate
        else:
            yield draw.gamma(load.burstiness, 1 / (load.request_rate * load.burstiness))
