"""A kv edge between two tiny stages whose refs, stores and clock obey a test.

The orchestrator's part: refs in whatever order, and a request that fails at one end ends at both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from antiphon.core.kv_handoff import KvSettings
from antiphon.core.options import ConnectorSpec
from antiphon.sched.events import HandoffStatistics
from antiphon.stage.messages import (
    Abort,
    Aborted,
    Deliver,
    Discard,
    Output,
    Sleep,
    Step,
    Used,
    Wake,
)
from antiphon.stage.spec import StageSpec
from antiphon.testing.faults import Faults, Item, RefShuffler, faulty
from tiny import Driven
from tiny_caches import EDGE, assert_empty, consumer_spec, producer_spec
from tiny_clock import CLOCK
from tiny_streams import Chain

RUN = "kv_faults"
CONNECTOR = ConnectorSpec("antiphon.testing.faults:FaultyInproc", RUN)
# s, on the clock: for a worker's answer, for a stored cache, and a consumer's patience.
ACK, LEASE, PATIENCE = 20.0, 40.0, 90.0


def faulty_producer(name: str, model: str, policy: Any, *, overlap: bool) -> StageSpec:
    """A stage that hands on with the first token, `policy` being its edge's on_failure."""
    settings = KvSettings(policy, ack_timeout_s=ACK, lease_s=LEASE, checksum=True)
    made = producer_spec(
        name, model, settings=settings, connector=CONNECTOR, async_scheduling=overlap
    )
    return _clocked(made, overlap=overlap)


def faulty_consumer(name: str, model: str, *, overlap: bool) -> StageSpec:
    """A stage that goes on with such caches."""
    made = consumer_spec(name, model, connector=CONNECTOR, async_scheduling=overlap)
    return _clocked(made, overlap=overlap, patience_s=PATIENCE)


def _clocked(made: StageSpec, *, overlap: bool, patience_s: float = 0.0) -> StageSpec:
    scheduler = "ClockedAsyncARScheduler" if overlap else "ClockedARScheduler"
    args = made.engine_args | {"scheduler_cls": f"tiny_clock.{scheduler}"}
    return msgspec.structs.replace(made, engine_args=args, input_wait_timeout_s=patience_s)


class Pair:
    """Two stages, the mail between them, and what has become of each request."""

    def __init__(self, producer: Driven, consumer: Driven) -> None:
        producer.clear()
        consumer.clear()
        self.producer, self.consumer = producer, consumer
        self.stages = producer, consumer
        self.mail = RefShuffler()
        self.faults: Faults = faulty(RUN)
        self.faults.heal()
        self.uids: list[str] = []
        self.over: set[str] = set()  # ended by an abort or an error
        self.errors: dict[str, set[str]] = {}  # codes, by the producer's uid
        self._before = self._statistics()
        self._seen = 0, 0
        self._told: list[tuple[Driven, int]] = []  # aborts that are to be acknowledged
        self._token = 0

    def start(self, uid: str, prompt: Sequence[int], tokens: int, *, short: bool = False) -> None:
        """A request of `tokens` tokens in all; a `short` one ends at the producer by itself with
        the token that its cache leaves with.
        """
        self.uids.append(uid)
        sampling = {"max_tokens": 1 if short else tokens}
        self.producer.submit(uid, prompt, edges=(EDGE,), sampling=sampling)
        self.consumer.submit(f"{uid}'", waits_for=EDGE, sampling={"max_tokens": tokens - 1})

    def answer(self, uid: str) -> list[int]:
        return self.producer.tokens(uid) + self.consumer.tokens(f"{uid}'")

    # --- one event ----------------------------------------------------------------------------

    def step(self, stage: Driven) -> bool:
        """One step if the stage has something to do; whether it had."""
        busy = stage.host.has_work
        if busy:
            stage.host.step()
        self._forward()
        return busy

    def deliver(self, item: Item) -> None:
        self.consumer.host.handle(Deliver([item]))
        self._forward()

    def deliver_all(self) -> None:
        for item in self.mail.drain():
            self.deliver(item)

    def abort(self, uid: str, stages: Iterable[Driven] | None = None) -> None:
        """Tell these stages, both by default, that the request is over."""
        self.over.add(uid)
        self._token += 1
        for stage in self.stages if stages is None else stages:
            stage.host.handle(Abort([uid, f"{uid}'"], self._token))
            self._told.append((stage, self._token))
        for item in [item for item in self.mail.pending if item[1].uid == uid]:
            self.mail.lose(self.mail.pending.index(item))
            self._discard([item[1].key])
        self._forward()

    def sleep(self, stage: Driven) -> None:
        self._token += 1
        stage.host.handle(Sleep(1, self._token))
        self._forward()

    def wake(self, stage: Driven) -> None:
        self._token += 1
        stage.host.handle(Wake(None, self._token))
        self._forward()

    # --- many ---------------------------------------------------------------------------------

    def round(self) -> bool:
        """A step of each stage, and all mail; whether anything happened."""
        busy = [self.step(stage) for stage in self.stages]
        under_way = bool(self.mail.pending)
        self.deliver_all()
        return any(busy) or under_way

    def run_to_mail(self) -> None:
        """Until the producer has announced something."""
        while not self.mail.pending:
            assert self.step(self.producer), "the producer announces nothing"

    def settle(self) -> None:
        """Nothing goes wrong any more, and time goes by from one deadline to the next."""
        self.faults.heal()
        for stage in self.stages:
            self.wake(stage)
        self.run()

    def run(self) -> None:
        """Until no request is left, nor a store to try again. AssertionError if one hangs."""
        for _ in range(2000):
            if self.round():
                continue
            schedulers = [stage.scheduler for stage in self.stages]
            held = self.producer.scheduler.handoffs.holding
            retries = any(s.coordinator.outflow.retry_at is not None for s in schedulers)
            if not (held or retries or any(scheduler.requests for scheduler in schedulers)):
                return
            dues = [due for s in schedulers if (due := s.next_due()) is not None]
            assert dues, "a request hangs: no deadline would ever end it"
            CLOCK.advance(max(0.0, min(dues) - CLOCK()))
        raise AssertionError("the stages do not come to rest")

    # --- afterwards ---------------------------------------------------------------------------

    def statistics(self) -> HandoffStatistics:
        """Of the hand-offs since the pair was made; what is under way is what it is now."""
        before, now = self._before, self._statistics()
        changes = {
            name: getattr(now, name) - getattr(before, name) for name in now.__struct_fields__
        }
        return HandoffStatistics(**changes)

    def check(self, uid: str, expected: list[int]) -> None:
        """The request has ended once at each end, and its words were the right ones."""
        producer = [end.finish for end in self.producer.endings(uid)]
        consumer = [end.finish for end in self.consumer.endings(f"{uid}'")]
        answer = self.answer(uid)
        assert answer == expected[: len(answer)], uid
        if uid not in self.over:
            assert producer in (["stop"], ["length"]), (uid, producer)
            assert consumer == ["length"], (uid, consumer)
            assert len(answer) == len(expected), uid
            return
        # A hand-off may fail when its request has ended well.
        ends = [[], ["stop"], ["length"], ["error"], ["length", "error"]]
        assert producer in ends, (uid, producer)
        assert consumer in ([], ["length"], ["error"]), (uid, consumer)
        failed = [*producer, *consumer].count("error")
        assert bool(failed) == (uid in self.errors), (uid, self.errors)

    def check_rest(self) -> None:
        """Nothing is left, every abort was acknowledged, and the hand-offs add up."""
        for stage, token in self._told:
            acknowledged = [e for e in stage.events if isinstance(e, Aborted) and e.token == token]
            assert len(acknowledged) == 1, (stage.spec.name, acknowledged)
        assert_empty(Chain(self.producer, self.consumer))
        seen = self.statistics()
        assert (seen.active, seen.held_blocks, seen.leased) == (0, 0, 0), seen
        assert seen.marked == seen.ready + seen.failed + seen.cancelled, seen
        assert seen.ready <= seen.shipped <= seen.marked, seen
        assert seen.marked - seen.shipped <= seen.cancelled, seen

    # --- parts --------------------------------------------------------------------------------

    def _statistics(self) -> HandoffStatistics:
        found = self.producer.scheduler.handoffs.statistics()
        assert found is not None
        return found

    def _forward(self) -> None:
        """Pass on what both have reported since the last time."""
        down, up = self._seen
        self._seen = len(self.producer.events), len(self.consumer.events)
        for event in self.producer.events[down:]:
            if isinstance(event, Step):
                for ref in event.refs:
                    if ref.uid in self.over:
                        self._discard([ref.key])
                    else:
                        self.mail.add([(f"{ref.uid}'", ref)])
                self._end(event.outputs)
        for event in self.consumer.events[up:]:
            if isinstance(event, Step):
                for edge, keys in event.used.items():
                    self.producer.host.handle(Used(edge, keys))
                self._end(event.outputs)

    def _discard(self, keys: Sequence[str | None]) -> None:
        if found := [key for key in keys if key is not None]:
            self.producer.host.handle(Discard(found))

    def _end(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if output.error is not None:
                uid = output.uid.rstrip("'")
                self.errors.setdefault(uid, set()).add(output.error.code)
                if uid not in self.over:
                    self.abort(uid)
