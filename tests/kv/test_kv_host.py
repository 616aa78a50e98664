"""A stage whose caches leave, as its host answers for it: aborts, sleep, sessions, inspection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from antiphon.core.kv_handoff import KvSettings
from antiphon.core.options import ConnectorSpec
from antiphon.sched.events import HandoffStatistics
from antiphon.stage.messages import Abort, Aborted, Acknowledged, Discard, Sleep, Wake
from antiphon.testing.faults import Faults, faulty
from engine_pool import EnginePool
from tiny import Driven
from tiny_caches import EDGE, producer_spec, prompt_of
from tiny_clock import CLOCK

RUN = "kv_host"
ACK_S, LEASE_S = 5.0, 60.0
PROMPT = prompt_of(1, 50)


@pytest.fixture(scope="module", params=[False, True], ids=["sync", "async"])
def built(engines: EnginePool, model: str, request: pytest.FixtureRequest) -> Driven:
    overlap = bool(request.param)
    spec = producer_spec(
        f"host-{overlap}",
        model,
        settings=KvSettings(ack_timeout_s=ACK_S, lease_s=LEASE_S),
        connector=ConnectorSpec("antiphon.testing.faults:FaultyInproc", RUN),
        async_scheduling=overlap,
        enable_prefix_caching=True,
    )
    scheduler = "ClockedAsyncARScheduler" if overlap else "ClockedARScheduler"
    args = spec.engine_args | {"scheduler_cls": f"tiny_clock.{scheduler}"}
    return engines.stage(msgspec.structs.replace(spec, engine_args=args))


@pytest.fixture
def faults() -> Iterator[Faults]:
    yield faulty(RUN)
    faulty(RUN).heal()


@pytest.fixture
def stage(built: Driven, faults: Faults) -> Iterator[Driven]:
    built.clear()
    yield built
    built.discard()
    CLOCK.advance(2 * ACK_S)
    built.assert_empty()
    assert counts(built).leased == counts(built).active == counts(built).held_blocks == 0


def counts(stage: Driven) -> HandoffStatistics:
    found = stage.inspect().handoffs
    assert found is not None
    return found


def unanswered(stage: Driven, faults: Faults, uid: str = "a") -> None:
    """The request's cache cannot be stored for now, and nothing is left to do."""
    faults.fail_puts()
    stage.submit(uid, PROMPT, edges=(EDGE,))
    stage.run()
    assert counts(stage).active == 1
    assert counts(stage).held_blocks == 2


def told(stage: Driven, kind: type[Any]) -> list[Any]:
    return [event for event in stage.events if isinstance(event, kind)]


def test_what_was_handed_over_is_counted(stage: Driven) -> None:
    before = counts(stage)
    stage.submit("a", PROMPT, edges=(EDGE,))
    stage.run()
    after = counts(stage)
    assert (after.shipped, after.ready) == (before.shipped + 1, before.ready + 1)
    assert (after.leased, after.held_blocks) == (1, 0)
    (ref,) = stage.refs()
    stage.host.handle(Discard([ref.key]))
    stage.run()
    assert counts(stage).leased == 0


@pytest.mark.parametrize("overdue", [False, True])
def test_an_abort_is_acknowledged_when_the_blocks_are_free(
    stage: Driven, faults: Faults, overdue: bool
) -> None:
    """C6: with the worker's answer, or without it once it is overdue."""
    unanswered(stage, faults)
    late = counts(stage).late_acks
    stage.host.handle(Abort(["a"], 7))
    assert stage.scheduler.handoffs.holds(["a"])
    assert told(stage, Aborted) == []
    if overdue:
        CLOCK.advance(ACK_S)
    stage.run()
    assert [event.token for event in told(stage, Aborted)] == [7]
    seen = stage.inspect()
    assert seen.free_blocks == seen.total_blocks - 1
    assert counts(stage).late_acks == late + overdue
    assert stage.refs() == []


def test_an_abort_of_another_request_is_not_delayed(stage: Driven, faults: Faults) -> None:
    unanswered(stage, faults)
    stage.submit("b", PROMPT)
    stage.abort("b")
    assert counts(stage).active == 1
    faults.heal()
    CLOCK.advance(1.0)
    stage.run()
    assert [end.finish for end in stage.endings("a")] == ["stop"]


def test_a_stage_does_not_sleep_while_a_cache_leaves(stage: Driven, faults: Faults) -> None:
    """C123: what lies in its blocks is still being copied."""
    unanswered(stage, faults)
    stage.host.handle(Sleep(1, 1))
    assert told(stage, Acknowledged) == []
    assert not stage.host.has_work
    faults.heal()
    CLOCK.advance(1.0)
    stage.run()
    (slept,) = told(stage, Acknowledged)
    assert slept.error is None
    assert [ref.uid for ref in stage.refs()] == ["a"]
    stage.ask(Wake(None, 2))


def test_a_stage_sleeps_when_an_answer_is_overdue(stage: Driven, faults: Faults) -> None:
    unanswered(stage, faults)
    stage.host.handle(Sleep(1, 1))
    CLOCK.advance(ACK_S)
    stage.run()
    (slept,) = told(stage, Acknowledged)
    assert slept.error is None
    (end,) = stage.endings("a")
    assert end.error is not None
    assert end.error.code == "kv_transfer"
    stage.ask(Wake(None, 2))


def test_a_lease_runs_out_in_a_sleeping_stage(stage: Driven) -> None:
    """Its connector keeps nothing for a consumer that is gone."""
    stage.submit("a", PROMPT, edges=(EDGE,))
    stage.run()
    stage.ask(Sleep(1, 1))
    assert counts(stage).leased == 1
    CLOCK.advance(LEASE_S)
    stage.run()
    assert stage.inspect().connector_entries == 0
    assert counts(stage).leased == 0
    stage.ask(Wake(None, 2))


def test_a_session_is_refused(stage: Driven) -> None:
    """Its cache would have no end."""
    stage.submit("s", PROMPT, session=True, edges=(EDGE,))
    (end,) = stage.endings("s")
    assert end.error is not None
    assert end.error.code == "invalid_parameter"
    assert "hands over KV caches" in end.error.message


def test_an_id_is_refused_while_its_cache_leaves(stage: Driven, faults: Faults) -> None:
    unanswered(stage, faults)
    stage.host.handle(Abort(["a"], 1))
    stage.submit("a", PROMPT, edges=(EDGE,))
    (end,) = stage.endings("a")
    assert end.error is not None
    assert end.error.code == "duplicate_request"
    faults.heal()
    stage.run()
    stage.clear()
    stage.submit("a", PROMPT, edges=(EDGE,))
    stage.run()
    assert [ref.uid for ref in stage.refs()] == ["a"]
