"""The schedulers of autoregressive stages.

Upstream's rule applies: async scheduling needs an AsyncScheduler.
"""

from __future__ import annotations

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from antiphon.sched.mixin import StageSchedulerMixin


class ARScheduler(StageSchedulerMixin, Scheduler):
    """Synchronous scheduling."""


class AsyncARScheduler(StageSchedulerMixin, AsyncScheduler):
    """Asynchronous scheduling: a step is scheduled before the last one's result is known."""
