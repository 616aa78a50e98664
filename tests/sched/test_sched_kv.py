"""KV hand-off at the scheduler: when a cache leaves, what is held meanwhile, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest
from sched_core import sampled
from sched_engine import OUT, Stage, plan
from sched_kv import KV, PREFILL, KvStage, special
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import ModelRunnerOutput

from antiphon.core.budget import EdgeLimits
from antiphon.core.kv_handoff import KvSettings, KvTransfer
from antiphon.core.options import OutEdge
from antiphon.core.prompt_plan import salt_for
from antiphon.core.tickets import Ended
from antiphon.errors import DuplicateRequestError
from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.sched.block_holds import BlockHolds

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])
CACHING = pytest.mark.parametrize("caching", [False, True], ids=["plain", "prefix cache"])
WHEN_OVER = KvTransfer("request_finished")
GOES_ON = KvTransfer("prefill_finished", stop_after_transfer=False)
UNPARKED = KvTransfer("prefill_finished", park=False)


def token(uid: str, position: int) -> int:
    """All different, so that a special token is sampled at one position alone."""
    return 100 + position


def active(cls: type[ARScheduler], transfer: KvTransfer = PREFILL, **kw: Any) -> KvStage:
    """Request "a" has been shipped, and the worker does not answer."""
    stage = KvStage(cls, transfer, **kw)
    stage.answer = "keep"
    stage.submit("a", 20, max_tokens=9)
    stage.until(lambda: stage.ships)
    return stage


# --- when a cache leaves --------------------------------------------------------------------------


@BOTH
@CACHING
@pytest.mark.parametrize("budget", [512, 16], ids=["whole", "chunked"])
def test_the_prompt_leaves_when_it_has_been_computed(
    cls: type[ARScheduler], caching: bool, budget: int
) -> None:
    """The first token is emitted, the cache announced, and then the request stops."""
    stage = KvStage(cls, enable_prefix_caching=caching, max_num_batched_tokens=budget)
    stage.submit("a", 40, max_tokens=50)
    stage.drain()
    (ship,) = stage.ships
    assert (ship.length, len(ship.block_ids[0])) == (40, 3)
    assert ship.token_ids == (*range(1, 41), *stage.outcomes["a"].tokens)
    assert stage.outcomes["a"].tokens == sampled("a", 40, 1)
    assert stage.heard == ["ready a", "end a"]
    assert stage.ends("a") == [FinishReason.STOP]
    assert stage.error_code("a") is None
    stage.check_over()


@BOTH
def test_the_cache_is_announced_while_the_request_lives(cls: type[ARScheduler]) -> None:
    """Its end is reported by the same step, behind it."""
    stage = active(cls)
    assert "a" in stage.scheduler.requests
    stage.ack(stage.ships[0])
    while not stage.sent:
        assert stage.ends("a") == []
        stage.step()
    assert stage.ends("a") == [FinishReason.STOP]


@BOTH
@CACHING
def test_a_special_token_ships_what_stands_before_it(cls: type[ARScheduler], caching: bool) -> None:
    stage = KvStage(cls, special(134), token=token, enable_prefix_caching=caching)
    stage.submit("a", 30, max_tokens=50)
    stage.submit("b", 10, max_tokens=50)
    stage.drain()
    (ship,) = stage.shipped("a")
    assert ship.length == 34
    assert ship.token_ids == (*range(1, 31), 130, 131, 132, 133, 134)
    assert stage.outcomes["a"].tokens == [130, 131, 132, 133, 134]
    assert stage.shipped("b")[0].length == 34
    stage.check_over()


@BOTH
@pytest.mark.parametrize("transfer", [PREFILL, special(120), WHEN_OVER], ids=lambda t: t.type)
@pytest.mark.parametrize("why", ["length", "stop"])
def test_a_request_whose_trigger_is_its_end_ships(
    cls: type[ARScheduler], transfer: KvTransfer, why: str
) -> None:
    """C88: also when the only token is the one that ends it."""
    stage = KvStage(cls, transfer, token=token)
    if why == "length":
        stage.submit("a", 20, max_tokens=1)
    else:
        stage.submit("a", 20, stop_token_ids=[120])
    stage.drain()
    (ship,) = stage.ships
    assert (ship.length, ship.token_ids[20:]) == (20, (120,))
    assert [str(end) for end in stage.ends("a")] == [why]
    assert stage.heard == ["end a", "ready a"]
    stage.check_over()


@BOTH
def test_a_finished_request_ships_all_that_has_been_computed(cls: type[ARScheduler]) -> None:
    """The last token has never been fed back."""
    stage = KvStage(cls, WHEN_OVER)
    stage.submit("a", 20, max_tokens=6)
    stage.drain()
    (ship,) = stage.ships
    assert (ship.length, len(ship.token_ids)) == (25, 26)
    assert stage.outcomes["a"].tokens == sampled("a", 20, 6)
    stage.check_over()


@BOTH
def test_a_criterion_that_is_never_met_ships_nothing(cls: type[ARScheduler]) -> None:
    """The request ends as it would; the worker tells the consumer that nothing comes."""
    stage = KvStage(cls, special(999))
    stage.submit("a", 20, max_tokens=6)
    stage.drain()
    assert stage.ships == []
    assert stage.ends("a") == [FinishReason.LENGTH]
    assert [e for w in stage.works for e in w.ended] == [Ended("a", True, 26)]
    stage.check_over()


@BOTH
def test_a_request_that_does_not_feed_the_edge_has_no_hand_off(cls: type[ARScheduler]) -> None:
    stage = KvStage(cls)
    stage.submit("a", 20, max_tokens=6, hands_over=False)
    stage.drain()
    assert stage.ships == []
    assert len(stage.outcomes["a"].tokens) == 6
    stage.check_over()


@BOTH
def test_a_request_may_go_on_after_its_transfer(cls: type[ARScheduler]) -> None:
    """It is neither parked nor stopped, and hands over once."""
    stage = KvStage(cls, GOES_ON)
    stage.submit("a", 20, max_tokens=9)
    stage.drain()
    assert stage.heard == ["ready a", "end a"]
    assert len(stage.ships) == 1
    assert stage.outcomes["a"].tokens == sampled("a", 20, 9)
    assert stage.ends("a") == [FinishReason.LENGTH]
    stage.check_over()


@BOTH
def test_a_cache_never_makes_its_request_wait_for_room(cls: type[ARScheduler]) -> None:
    """It is the only payload on its edge, whatever its size; on another edge it waits as ever."""
    tight = EdgeLimits(request_chunks=1, total_chunks=1)
    chunks = OutEdge(OUT, "", stream=True, limits=tight)
    stage = KvStage(cls, GOES_ON, kv_limits=tight, more=(chunks,))
    stage.worker.produces = True
    stage.submit("a", 20, edges=(OUT,), max_tokens=9)
    for _ in range(9):
        stage.drain()
        keys = [ref.key for ref in stage.sent if ref.edge == OUT and ref.key is not None]
        stage.sent = [ref for ref in stage.sent if ref.edge == KV]
        stage.scheduler.used(OUT, keys)
    stage.drain()
    assert stage.ends("a") == [FinishReason.LENGTH]
    budget = stage.scheduler.coordinator.outflow.statistics()[KV]
    assert (budget.chunks, budget.blockings) == (1, 0)


@BOTH
def test_the_order_names_epoch_edge_and_salt(cls: type[ARScheduler]) -> None:
    """Of a request whose prompt came from another stage: its own, not the placeholder's."""
    stage = KvStage(cls)
    request = stage.submit("a", gated=True, epoch=3)
    stage.deliver("a", plan(*range(50, 70), salt="voice"), epoch=3)
    stage.drain()
    (ship,) = stage.ships
    assert (ship.uid, ship.edge, ship.epoch, ship.length) == ("a", KV, 3, 20)
    assert ship.salt == request.cache_salt == salt_for(plan(1, salt="voice"), "a")
    stage.check_over()


@BOTH
def test_every_kv_group_is_cut_to_the_snapshot(cls: type[ARScheduler]) -> None:
    """Of a sliding window what has been dropped is upstream's null block."""
    stage = KvStage(cls, special(190), window=32, token=token)
    stage.submit("a", 80, max_tokens=200)
    stage.drain()
    (ship,) = stage.ships
    assert ship.length == 90
    full, window = ship.block_ids
    assert len(full) == len(window) == 6
    assert 0 not in full
    assert window[:2] == (0, 0)
    assert window[-1] != 0
    stage.check_over()


def test_what_a_request_has_not_got_is_not_held() -> None:
    stage = KvStage(window=32)
    stage.submit("a", 20)
    stage.step()
    held = stage.scheduler.handoffs.held_blocks()
    with pytest.raises(ValueError, match="tokens need 3 blocks"):
        BlockHolds(stage.scheduler).take("a", 33)
    stage.check()
    assert stage.scheduler.handoffs.held_blocks() == held
    stage.drain()
    stage.check_over()


# --- tokens behind the trigger --------------------------------------------------------------------


def scheduled_for(stage: KvStage, steps: int) -> list[bool]:
    """In which of the next steps request "a" is."""
    found = []
    for _ in range(steps):
        done = stage.step()
        assert done.scheduled is not None
        found.append("a" in done.scheduled.num_scheduled_tokens)
    return found


@pytest.mark.parametrize(
    ("cls", "transfer", "steps"),
    [
        (ARScheduler, PREFILL, [True, False, False, False]),
        (ARScheduler, UNPARKED, [True, True, False, False]),
        (AsyncARScheduler, PREFILL, [True, True, False, False]),
        (AsyncARScheduler, UNPARKED, [True, True, True, False]),
    ],
    ids=["sync", "sync unparked", "async", "async unparked"],
)
def test_a_parked_request_computes_no_surplus_token(
    cls: type[ARScheduler], transfer: KvTransfer, steps: list[bool]
) -> None:
    """Under async scheduling one step is in flight when it is parked. Unparked it goes on until a
    token comes that nobody wants. Either way none of them is reported.
    """
    stage = KvStage(cls, transfer)
    stage.answer = "keep"
    stage.submit("a", 20, max_tokens=50)
    stage.submit("b", 20, max_tokens=50, hands_over=False)
    assert scheduled_for(stage, 4) == steps
    stage.ack(stage.ships[0])
    stage.drain()
    assert stage.outcomes["a"].tokens == sampled("a", 20, 1)
    assert stage.outcomes["b"].tokens == sampled("b", 20, 50)
    assert stage.updates("a") == stage.outcomes["a"].tokens
    stage.check_over()


@BOTH
def test_room_on_another_edge_does_not_wake_a_parked_request(cls: type[ARScheduler]) -> None:
    chunks = OutEdge(OUT, "", stream=True, limits=EdgeLimits(request_chunks=1))
    stage = KvStage(cls, more=(chunks,))
    stage.answer = "keep"
    stage.worker.produces = True
    stage.submit("a", 20, edges=(OUT,), max_tokens=50)
    stage.submit("b", 20, hands_over=False, max_tokens=50)
    stage.until(lambda: stage.scheduler.coordinator.outflow.full("a"))
    stage.consume(uid="a")
    assert not stage.scheduler.coordinator.outflow.full("a")
    assert not any(scheduled_for(stage, 3))
    stage.ack(stage.ships[0])
    stage.drain()
    assert stage.outcomes["a"].tokens == sampled("a", 20, 1)
    assert len(stage.outcomes["b"].tokens) == 50


@BOTH
@pytest.mark.parametrize("transfer", [PREFILL, UNPARKED], ids=["parked", "unparked"])
def test_an_unanswered_order_lets_the_engine_sleep(
    cls: type[ARScheduler], transfer: KvTransfer
) -> None:
    """Until the answer is due, and no longer."""
    stage = active(cls, transfer, settings=KvSettings(ack_timeout_s=5.0))
    stage.drain()
    assert not stage.has_work
    assert stage.scheduler.next_due() == 5.0
    stage.clock.advance(4.9)
    assert not stage.has_work
    stage.clock.advance(0.1)
    assert stage.has_work


@BOTH
def test_the_time_of_a_hand_off_is_counted_until_it_is_announced(cls: type[ARScheduler]) -> None:
    stage = active(cls, settings=KvSettings(ack_timeout_s=5.0))
    stage.clock.advance(1.5)
    assert stage.statistics.store_s == 0.0
    stage.ack(stage.ships[0])
    stage.drain()
    assert stage.statistics.store_s == 1.5
    stage.check_over()


def drafts(_uid: str, position: int) -> int:
    """What is sampled at each position; from 21 on it is what has been drafted as well."""
    return {21: 3, 22: 5, 23: 7, 24: 5}.get(position, 50 + position)


@BOTH
@pytest.mark.parametrize("how", ["parked", "unparked", "goes on"])
def test_tokens_sampled_with_the_trigger_and_behind_it_are_cut(
    cls: type[ARScheduler], how: str
) -> None:
    """As by upstream's own stops. Tokens of one step come with speculative decoding."""
    stops = how != "goes on"
    transfer = special(5, stop_after_transfer=stops, park=how == "parked")
    stage = KvStage(cls, transfer, token=drafts, log_stats=False)
    stage.answer = "keep"
    request = stage.submit("a", 20, max_tokens=9)
    stage.step()
    request.spec_token_ids = [3, 5, 7]

    def several(output: ModelRunnerOutput) -> ModelRunnerOutput:
        output.sampled_token_ids[:] = [[3, 5, 7, 5]]
        stage.alter = lambda output: output
        return output

    stage.alter = several
    stage.until(lambda: 5 in stage.outcomes["a"].tokens)
    assert stage.statistics.marked == 1
    assert scheduled_for(stage, 1) == [not stops]
    (ship,) = stage.ships
    assert (ship.length, ship.token_ids[20:]) == (22, (70, 3, 5))
    stage.ack(ship)
    stage.drain()
    more = [] if stops else [7, 5, 75, 76, 77, 78]
    assert stage.outcomes["a"].tokens == [70, 3, 5, *more]
    assert stage.heard == ["ready a", "end a"]
    stage.check_over()


# --- answers that fail, are late, or never come ---------------------------------------------------

LATE = KvSettings(ack_timeout_s=5.0)


def lose_the_answer(stage: KvStage) -> None:
    """The deadline passes, and the engine does what is due."""
    stage.drain()
    assert not stage.has_work
    stage.clock.advance(5.0)
    stage.drain()


@BOTH
@pytest.mark.parametrize("transfer", [PREFILL, UNPARKED, GOES_ON], ids=["parks", "not", "goes on"])
def test_a_lost_answer_fails_the_request_at_its_deadline(
    cls: type[ARScheduler], transfer: KvTransfer
) -> None:
    """C9: also if nothing else runs and nothing is scheduled. Its blocks are back."""
    stage = active(cls, transfer, settings=KvSettings(ack_timeout_s=5.0))
    if transfer is GOES_ON:
        stage.clock.advance(5.0)
        stage.drain()
    else:
        lose_the_answer(stage)
    assert stage.ends("a") == [FinishReason.ERROR]
    assert stage.error_code("a") == "kv_transfer"
    assert stage.ready("a") == []
    assert stage.statistics.failed == 1
    stage.check_over()


@BOTH
def test_a_failed_answer_fails_the_request(cls: type[ARScheduler]) -> None:
    """With the worker's reason; a request beside it goes on."""
    stage = KvStage(cls)
    stage.answer = "fail"
    stage.submit("a", 20, max_tokens=9)
    stage.submit("b", 20, max_tokens=9, hands_over=False)
    stage.drain()
    assert stage.error_code("a") == "kv_transfer"
    error = stage.outcomes["a"].error
    assert error is not None
    assert "no room" in error.message
    assert stage.outcomes["b"].tokens == sampled("b", 20, 9)
    stage.check_over()


@BOTH
@pytest.mark.parametrize("lost", [True, False], ids=["lost", "failed"])
@pytest.mark.parametrize("stops", [True, False])
def test_a_consumer_may_compute_a_lost_cache_itself(
    cls: type[ARScheduler], lost: bool, stops: bool
) -> None:
    """It is told so in place of a cache, and the request ends as it would have."""
    transfer = PREFILL if stops else GOES_ON
    stage = KvStage(cls, transfer, KvSettings(on_failure="recompute", ack_timeout_s=5.0))
    stage.answer = "keep" if lost else "fail"
    stage.submit("a", 20, max_tokens=4)
    stage.drain()
    if lost:
        stage.clock.advance(5.0)
        stage.drain()
    (ref,) = stage.sent
    assert (ref.uid, ref.edge, ref.seq, ref.end, ref.key) == ("a", KV, 0, True, None)
    assert ref.token_ids == (*range(1, 21), stage.outcomes["a"].tokens[0])
    assert len(stage.outcomes["a"].tokens) == (1 if stops else 4)
    assert stage.ends("a") == [FinishReason.STOP if stops else FinishReason.LENGTH]
    assert stage.error_code("a") is None
    stage.sent.clear()
    stage.check_over()


@BOTH
def test_nobody_can_compute_what_is_salted(cls: type[ARScheduler]) -> None:
    """Its ids are not all of its prompt: without a cache the request fails."""
    stage = KvStage(cls, PREFILL, KvSettings(on_failure="recompute"))
    stage.answer = "fail"
    stage.submit("a", 20, max_tokens=4).cache_salt = "voice"
    stage.drain()
    assert stage.sent == []
    assert stage.error_code("a") == "kv_transfer"
    stage.check_over()


@BOTH
def test_a_late_answer_changes_nothing(cls: type[ARScheduler]) -> None:
    """What it has stored is freed."""
    stage = active(cls, settings=LATE)
    lose_the_answer(stage)
    stage.ack(stage.ships[0])
    assert stage.stored
    stage.drain()
    assert stage.heard == ["end a"]
    assert stage.statistics.late_acks == 1
    assert not stage.stored
    stage.check_over()


@BOTH
@pytest.mark.parametrize("transfer", [PREFILL, GOES_ON], ids=["stops", "goes on"])
def test_a_repeated_answer_changes_nothing(cls: type[ARScheduler], transfer: KvTransfer) -> None:
    """What it names is announced, and is not freed."""
    stage = active(cls, transfer)
    stage.ack(stage.ships[0], twice=True)
    stage.drain()
    assert len(stage.ready("a")) == 1
    assert stage.statistics.late_acks == 1
    assert len(stage.stored) == 1
    stage.check_over()


@BOTH
def test_an_answer_to_an_older_order_changes_nothing(cls: type[ARScheduler]) -> None:
    """The same id again, when its first hand-off is over: the orders differ."""
    stage = active(cls, settings=LATE)
    lose_the_answer(stage)
    stage.again("a", 30)
    stage.until(lambda: len(stage.ships) == 2)
    first, second = stage.ships
    assert first.generation < second.generation
    stage.ack(first)
    stage.until(lambda: stage.statistics.late_acks and not stage.stored)
    assert stage.statistics.active == 1
    stage.ack(second)
    stage.drain()
    assert stage.heard[-2:] == ["ready a", "end a"]
    stage.check_over()


@BOTH
def test_an_id_is_taken_until_its_cache_has_left(cls: type[ARScheduler]) -> None:
    """An answer belongs to one request; then the id is free."""
    stage = active(cls)
    stage.abort("a")
    stage.drain()
    with pytest.raises(DuplicateRequestError):
        stage.submit("a", 20)
    stage.ack(stage.ships[0])
    stage.drain()
    stage.answer = "ok"
    stage.again("a")
    stage.drain()
    assert [ship.generation for ship in stage.ships] == [1, 2]
    assert stage.heard == ["end a", "ready a", "end a"]
    stage.check_over()


@BOTH
def test_an_answer_of_a_step_that_schedules_nothing_is_heard(cls: type[ARScheduler]) -> None:
    """C9."""
    stage = active(cls)
    stage.drain()
    stage.ack(stage.ships[0], ok=False)
    assert stage.has_work
    stage.drain()
    assert stage.error_code("a") == "kv_transfer"
    stage.check_over()


@BOTH
@pytest.mark.parametrize("lost", [True, False], ids=["lost", "failed"])
def test_a_failure_after_the_requests_end_is_reported(cls: type[ARScheduler], lost: bool) -> None:
    """Its consumer would wait for ever."""
    stage = KvStage(cls, WHEN_OVER, LATE)
    stage.answer = "keep" if lost else "fail"
    stage.submit("a", 20, max_tokens=3)
    stage.until(lambda: stage.ends("a"))
    assert stage.error_code("a") is None
    stage.drain()
    if lost:
        stage.clock.advance(5.0)
        stage.drain()
    assert stage.late["a"].code == "kv_transfer"
    assert stage.heard == ["end a"]
    stage.check_over()


# --- aborts ---------------------------------------------------------------------------------------


@BOTH
@CACHING
def test_an_abort_before_the_trigger_leaves_nothing(cls: type[ARScheduler], caching: bool) -> None:
    stage = KvStage(cls, special(999), enable_prefix_caching=caching)
    stage.submit("a", 20, max_tokens=50)
    stage.step()
    stage.step()
    stage.abort("a")
    stage.drain()
    assert stage.ships == []
    stage.check_over()


@BOTH
@CACHING
def test_an_abort_before_the_order_cancels_it(cls: type[ARScheduler], caching: bool) -> None:
    """Nothing is shipped, and the blocks are free at once."""
    stage = KvStage(cls, enable_prefix_caching=caching)
    stage.submit("a", 20)
    stage.until(lambda: stage.scheduler.handoffs.to_ship)
    assert stage.statistics.held_blocks == 2
    stage.abort("a")
    assert stage.free_blocks == stage.total_blocks
    stage.drain()
    assert stage.ships == []
    assert stage.statistics.cancelled == 1
    stage.check_over()


@BOTH
@CACHING
@pytest.mark.parametrize("ok", [True, False, None], ids=["stored", "failed", "lost"])
def test_an_abort_of_a_shipped_request_holds_its_blocks_until_the_answer(
    cls: type[ARScheduler], caching: bool, ok: bool | None
) -> None:
    """C6. What has been stored is freed; nothing is announced and no error told."""
    stage = active(cls, enable_prefix_caching=caching, settings=LATE)
    stage.abort("a")
    stage.drain()
    assert stage.statistics.held_blocks == 2
    assert stage.scheduler.handoffs.holds(["a"])
    assert stage.free_blocks == stage.total_blocks - 2
    if ok is None:
        stage.clock.advance(5.0)
    else:
        stage.ack(stage.ships[0], ok=ok)
    stage.drain()
    assert not stage.scheduler.handoffs.holds(["a"])
    assert stage.heard == ["end a"]
    assert stage.late == {}
    assert not stage.stored
    assert (stage.statistics.cancelled, stage.statistics.failed) == (1, 0)
    stage.check_over()


@BOTH
def test_an_abort_of_a_request_that_has_ended_here_cancels_its_order(
    cls: type[ARScheduler],
) -> None:
    """Its cache has not left yet, and nobody waits for it any more."""
    stage = KvStage(cls, WHEN_OVER)
    stage.submit("a", 20, max_tokens=3)
    stage.until(lambda: stage.ends("a"))
    assert stage.scheduler.handoffs.to_ship
    stage.abandon("a")
    assert stage.free_blocks == stage.total_blocks
    stage.drain()
    assert stage.ships == []
    assert stage.statistics.cancelled == 1
    stage.check_over()


@BOTH
@pytest.mark.parametrize("ok", [True, False, None], ids=["stored", "failed", "lost"])
def test_an_abort_of_a_request_that_has_ended_here_frees_its_cache(
    cls: type[ARScheduler], ok: bool | None
) -> None:
    """Its cache is on the way: the answer is waited for, and then forgotten."""
    stage = active(cls, WHEN_OVER, settings=LATE)
    stage.drain()
    stage.abandon("a")
    assert stage.scheduler.handoffs.holds(["a"])
    if ok is None:
        stage.clock.advance(5.0)
    else:
        stage.ack(stage.ships[0], ok=ok)
    stage.drain()
    assert stage.heard == ["end a"]
    assert stage.late == {}
    assert not stage.stored
    assert stage.statistics.cancelled == 1
    stage.check_over()


@BOTH
def test_an_abort_in_the_triggers_own_step_ships_nothing(cls: type[ARScheduler]) -> None:
    """An aborted request never begins a transfer."""
    stage = KvStage(cls)
    stage.submit("a", 20)
    stage.submit("b", 20, hands_over=False, max_tokens=3)
    while stage.outcomes["a"].ends == []:
        stage.step(before_update=lambda: stage.abort("a"))
    stage.drain()
    assert stage.ships == []
    stage.check_over()


@BOTH
@CACHING
@pytest.mark.parametrize("when", ["marked", "shipped", "answered"])
def test_one_of_two_with_the_same_prompt_is_aborted(
    cls: type[ARScheduler], caching: bool, when: str
) -> None:
    """C6: the other's cache arrives whole, also where they share blocks."""
    stage = KvStage(cls, enable_prefix_caching=caching)
    stage.answer = "keep"
    stage.submit("first", 40, hands_over=False, max_tokens=1)
    stage.drain()
    stage.submit("a", 40)
    stage.submit("b", 40)
    stage.until(lambda: stage.scheduler.handoffs.to_ship)
    if when != "marked":
        stage.until(lambda: len(stage.ships) == 2)
    stage.abort("a")
    stage.until(lambda: stage.shipped("b"))
    if when != "marked":
        stage.ack(stage.shipped("a")[0], ok=when == "answered")
    stage.drain()
    stage.ack(stage.shipped("b")[0])
    stage.drain()
    assert stage.heard == ["end first", "end a", "ready b", "end b"]
    assert len(stage.stored) == 1
    stage.check_over()


# --- finish while it is on its way ----------------------------------------------------------------


@BOTH
@CACHING
def test_a_request_that_ends_while_its_cache_leaves_keeps_the_blocks(
    cls: type[ARScheduler], caching: bool
) -> None:
    """Others compute meanwhile, and none of them is given a block of it."""
    stage = active(cls, GOES_ON, enable_prefix_caching=caching, num_blocks=12)
    stage.until(lambda: stage.ends("a"))
    (ship,) = stage.ships
    for number in range(6):
        stage.submit(f"r{number}", tokens=range(number, number + 60), hands_over=False)
    for _ in range(20):
        stage.step()
        stage._judge(ship)
    assert stage.statistics.held_blocks == 2
    stage.ack(ship)
    stage.drain()
    assert stage.heard.index("end a") < stage.heard.index("ready a")
    stage.check_over()


@BOTH
def test_the_end_of_a_request_is_told_the_worker_behind_its_order(cls: type[ARScheduler]) -> None:
    """Or with it: what the edge's adapter has is still there."""
    stage = KvStage(cls, WHEN_OVER)
    stage.submit("a", 20, max_tokens=3)
    stage.drain()
    shipped = [i for i, work in enumerate(stage.works) if work.ships]
    ended = [i for i, work in enumerate(stage.works) if work.ended]
    assert shipped == ended
    stage.check_over()


# --- room -----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("answered", [True, False])
def test_requests_wait_without_a_step_for_blocks_that_are_held(
    cls: type[ARScheduler], answered: bool
) -> None:
    """C116. The engine sleeps until the answer, or until that is overdue: then there is room."""
    stage = active(cls, WHEN_OVER, num_blocks=4, max_model_len=64, settings=LATE)
    stage.drain()
    assert stage.free_blocks == 1
    stage.submit("b", 30, max_tokens=2, hands_over=False)
    stage.drain(3)
    assert not stage.has_work
    assert stage.ends("b") == []
    if answered:
        stage.ack(stage.ships[0])
    else:
        stage.clock.advance(5.0)
    stage.drain()
    assert stage.ends("b") == [FinishReason.LENGTH]
    stage.check_over()


@BOTH
@pytest.mark.parametrize("way", ["used", "discarded", "abandoned"])
def test_the_lease_of_a_cache_ends_with_it(cls: type[ARScheduler], way: str) -> None:
    stage = KvStage(cls, settings=KvSettings(lease_s=60.0))
    stage.submit("a", 20)
    stage.drain()
    (ref,) = stage.ready("a")
    assert ref.key is not None
    assert stage.statistics.leased == 1
    assert stage.scheduler.next_due() == 60.0
    match way:
        case "used":
            stage.take(ref)
        case "discarded":
            stage.sent.clear()
            stage.scheduler.discard([ref.key])
        case "abandoned":
            stage.sent.clear()
            stage.abandon("a")
    assert stage.statistics.leased == 0
    assert stage.scheduler.next_due() is None
    stage.drain()
    assert not stage.stored
    stage.check_over()


@BOTH
def test_a_cache_that_nobody_takes_is_freed(cls: type[ARScheduler]) -> None:
    """When its lease is over, though the stage has nothing else to do."""
    stage = KvStage(cls, settings=KvSettings(lease_s=60.0))
    stage.submit("a", 20)
    stage.drain()
    stage.clock.advance(59.0)
    assert not stage.has_work
    stage.clock.advance(1.0)
    assert stage.has_work
    stage.drain()
    assert not stage.stored
    assert (stage.statistics.leased, stage.statistics.leases_expired) == (0, 1)
    assert stage.scheduler.coordinator.outflow.statistics()[KV].chunks == 0
    stage.sent.clear()
    stage.check_over()


@BOTH
def test_a_lease_of_zero_is_for_ever(cls: type[ARScheduler]) -> None:
    stage = KvStage(cls, settings=KvSettings(lease_s=0.0))
    stage.submit("a", 20)
    stage.drain()
    assert stage.scheduler.next_due() is None
    assert stage.statistics.leased == 1
    stage.check_over()


@BOTH
def test_a_stage_without_a_kv_edge_has_no_hand_offs(cls: type[ARScheduler]) -> None:
    stage = Stage(cls, limits=EdgeLimits())
    stage.submit("a", 20, edges=(OUT,))
    stage.drain()
    assert stage.scheduler.handoffs.statistics() is None
    assert stage.scheduler.next_due() is None
    assert len(stage.outcomes["a"].tokens) == 5
