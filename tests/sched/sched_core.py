"""Plays engine core and worker around one real scheduler, without a model.

`Engine.step` does what vLLM's engine core does in a step: synchronously with one batch in flight,
or, like `step_with_batch_queue`, with two. The worker's part follows from the scheduler's output:
tokens are a function of the request and the position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request

from factory import is_prefilling, make_output

TOKENS = 12  # few different ones, so that stop tokens are hit
TokenAt = Callable[[str, int], int]


def token_at(uid: str, position: int) -> int:
    """The token that the imaginary model samples for this position of this request."""
    return (sum(uid.encode()) * 31 + position * 7 + position // 3) % TOKENS


def sampled(uid: str, prompt: int, count: int) -> list[int]:
    """The first `count` tokens of a request after a prompt of this length."""
    return [token_at(uid, prompt + i) for i in range(count)]


def logprobs_for(tokens: list[list[int]], width: int = 3) -> LogprobsLists:
    """One row per request of the batch, as vLLM's v1 runner returns them."""
    ids = np.zeros((len(tokens), width), dtype=np.int32)
    for row, sampled in enumerate(tokens):
        if sampled:
            ids[row] = [(sampled[0] + i) % TOKENS for i in range(width)]
    values = -ids.astype(np.float32) - np.arange(width, dtype=np.float32)
    return LogprobsLists(ids, values, np.zeros(len(tokens), dtype=np.int32))


@dataclass
class Done:
    """One engine step: what was scheduled, and the result that was processed, if any."""

    scheduled: SchedulerOutput | None = None
    outputs: dict[int, EngineCoreOutputs] | None = None

    def __iter__(self) -> Any:
        return iter(out for group in (self.outputs or {}).values() for out in group.outputs)


class Engine:
    """The engine's and the worker's part for a scheduler of any class."""

    def __init__(self, scheduler: Scheduler, depth: int = 1, token: TokenAt = token_at) -> None:
        self.scheduler = scheduler
        self.depth = depth
        self.token = token
        self.in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self.alter: Callable[[ModelRunnerOutput], ModelRunnerOutput] = lambda output: output
        self.pools = False  # a generation stage's worker

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_requests() or bool(self.in_flight)

    def step(self, before_update: Callable[[], object] | None = None) -> Done:
        """Schedule if there is something to do; process the oldest result once that is due."""
        done = Done()
        if self.scheduler.has_requests():
            done.scheduled = self.scheduler.schedule()
            self.in_flight.appendleft((done.scheduled, self.run(done.scheduled)))
            executed = done.scheduled.total_num_scheduled_tokens > 0
            if len(self.in_flight) < self.depth and (executed or self.scheduler.has_requests()):
                return done
        elif not self.in_flight:
            return done
        scheduled, output = self.in_flight.pop()
        self.returned(output)
        if before_update is not None:
            before_update()
        done.outputs = dict(self.scheduler.update_from_output(scheduled, output))
        return done

    def run(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """What the worker returns for this step; asked right after it was scheduled."""
        if self.pools:
            quiet = [u for u in scheduled.num_scheduled_tokens if is_prefilling(self.scheduler, u)]
            return make_output(scheduled, silent=quiet, pooler_fn=lambda _uid: torch.ones(2))
        output = make_output(scheduled, self._sample, scheduler=self.scheduler)
        requests = self.scheduler.requests
        if any(_wants_logprobs(requests[uid]) for uid in output.req_ids):
            output.logprobs = logprobs_for(output.sampled_token_ids)
        return self.alter(output)

    def returned(self, output: ModelRunnerOutput) -> None:
        """This result is processed now."""

    def _sample(self, uid: str) -> int:
        return self.token(uid, self.scheduler.requests[uid].num_computed_tokens)


def _wants_logprobs(request: Request) -> bool:
    params: SamplingParams | None = request.sampling_params
    return params is not None and params.logprobs is not None
