"""Seam: what travels between scheduler and worker beside upstream's own fields.

Reason: `SchedulerOutput` and `ModelRunnerOutput` are plain dataclasses that executors move by
reference or pickle, so a subclass with one more field crosses unharmed. Built from `vars(base)`, it
follows every field that upstream adds. Fallback: none needed while both stay dataclasses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from antiphon.core.tickets import StageNews, StageWork


@dataclass
class StageSchedulerOutput(SchedulerOutput):
    """A scheduler output with orders for the stage's input and output."""

    stage_work: StageWork = field(default_factory=StageWork)


@dataclass
class StageRunnerOutput(ModelRunnerOutput):
    """A runner output with the answers to such orders."""

    stage_news: StageNews = field(default_factory=StageNews)


def with_work(base: SchedulerOutput, work: StageWork) -> SchedulerOutput:
    """`base` carrying `work`; `base` itself when there is none.

    In a routed step there always is some, so the two dozen fields are not passed one by one.
    """
    if not work:
        return base
    output = object.__new__(StageSchedulerOutput)
    vars(output).update(vars(base))
    output.stage_work = work
    return output


def work_of(output: SchedulerOutput) -> StageWork | None:
    return output.stage_work if isinstance(output, StageSchedulerOutput) else None


def with_news(base: ModelRunnerOutput, news: StageNews) -> ModelRunnerOutput:
    """`base` carrying `news`. Upstream's shared empty output is never written to."""
    return StageRunnerOutput(**vars(base), stage_news=news) if news else base


def news_of(output: ModelRunnerOutput) -> StageNews | None:
    return output.stage_news if isinstance(output, StageRunnerOutput) else None


class NewsOnArrival(AsyncModelRunnerOutput):
    """An output that is still being copied to the host; `carry_out` is done meanwhile."""

    def __init__(
        self,
        inner: AsyncModelRunnerOutput,
        carry_out: Callable[[], None],
        take_news: Callable[[], StageNews],
    ) -> None:
        self._inner = inner
        self._carry_out = carry_out
        self._take_news = take_news

    def get_output(self) -> ModelRunnerOutput:
        """Blocks until the copy is done; a worker process calls it on a thread of its own."""
        self._carry_out()
        output = self._inner.get_output()  # if it raises, the news go with the next output
        return with_news(output, self._take_news())
