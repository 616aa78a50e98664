"""Sessions that are interrupted, aborted or preempted, in every state."""

from __future__ import annotations

import pytest
from sched_core import sampled
from sched_engine import Stage
from sched_worker import OUT
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from antiphon.core.budget import EdgeLimits
from antiphon.core.prompt_plan import UpdateKind
from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.sched.events import SegmentEnd

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])
EXTEND, REPLACE, WINDOW = UpdateKind.EXTEND, UpdateKind.REPLACE, UpdateKind.WINDOW


def in_state(cls: type[ARScheduler], state: str) -> Stage:
    """Session "s" beside another request, in the state in which it is to be interrupted."""
    limits = EdgeLimits(request_chunks=2) if state == "held" else None
    crowd = state == "preempted"
    stage = Stage(
        cls,
        limits=limits,
        block_size=4,
        num_blocks=11 if crowd else 60,
        max_model_len=64,
        max_num_batched_tokens=8,
    )
    stage.submit("other", 8, max_tokens=14)
    edges = (OUT,) if state == "held" else ()
    stage.submit("s", 12, session=True, max_tokens=10, edges=edges)
    session = stage.scheduler.requests["s"]
    match state:
        case "prefill":
            stage.until(lambda: 0 < session.num_computed_tokens < 12)
        case "decode":
            stage.until(lambda: len(stage.outcomes["s"].tokens) == 3)
        case "preempted":
            stage.until(lambda: session.status is RequestStatus.PREEMPTED)
        case "held":
            stage.until(lambda: stage.scheduler.parking.held)
    return stage


@BOTH
@pytest.mark.parametrize("during", [False, True], ids=["between steps", "during a step"])
@pytest.mark.parametrize("then", ["at once", "later", "queued", "replace"])
@pytest.mark.parametrize("state", ["new", "prefill", "decode", "preempted", "held"])
def test_a_segment_can_be_interrupted_in_every_state(
    cls: type[ARScheduler], state: str, then: str, during: bool
) -> None:
    """C41, C42, C103: with 0, 1 or 2 frames in flight. Nothing of the segment is reported after the
    interruption, nothing of the next one is lost.
    """
    stage = in_state(cls, state)
    session = stage.scheduler.requests["s"]
    seen: list[int] = []
    called = []

    def interrupt() -> None:
        called.append(True)
        if then == "queued":
            stage.update("s", 1, 90, 91)
        seen.extend(list(session.all_token_ids)[: max(12, session.num_tokens - 1)])
        if then == "replace":
            stage.update("s", 1, 90, 91, kind=REPLACE)
            seen.clear()
        else:
            assert stage.interrupt("s")
        if then == "at once":
            stage.update("s", 1, 90, 91)

    if during:
        stage.step(before_update=interrupt)
        if not called:  # asynchronously the first step processes nothing
            stage.step(before_update=interrupt)
    else:
        interrupt()
    told = list(stage.outcomes["s"].by_epoch.get(0, []))
    if then == "later":
        stage.drain()
        stage.update("s", 1, 90, 91)
    if state == "held":
        stage.consume()
    stage.drain()
    for _ in range(20):
        stage.consume()
        stage.drain()
    assert stage.outcomes["s"].by_epoch.get(0, []) == told
    assert stage.worker.prompts["s", 1] == [*seen, 90, 91]
    assert stage.outcomes["s"].by_epoch[1] == sampled("s", len(seen) + 2, 10)
    assert stage.segments[0] == SegmentEnd("s", 0, "interrupt")
    assert stage.ends("other") == [FinishReason.LENGTH]
    stage.abort("s")
    stage.drain()
    stage.check_empty()


@BOTH
def test_interrupting_a_session_that_rests_does_nothing(cls: type[ARScheduler]) -> None:
    stage = Stage(cls)
    stage.submit("s", 4, session=True, max_tokens=2)
    stage.submit("plain")
    stage.drain()
    for uid in ("s", "plain", "nobody"):
        assert not stage.interrupt(uid)
    assert [end.reason for end in stage.segments] == ["length"]


@BOTH
def test_interruptions_in_a_row_lose_nothing(cls: type[ARScheduler]) -> None:
    """C42: several segments are in flight at once."""
    stage = Stage(cls)
    stage.submit("s", 4, session=True, max_tokens=9)
    for epoch in range(1, 12):
        if epoch % 3:
            stage.step()
        stage.interrupt("s")
        stage.update("s", epoch, 90 + epoch)
    stage.drain()
    prompt = stage.worker.prompts["s", 11]
    assert [token for token in prompt if token > 90] == list(range(91, 102))
    assert stage.outcomes["s"].by_epoch[11] == sampled("s", len(prompt), 9)


@BOTH
@pytest.mark.parametrize(
    "state", ["new", "prefill", "decode", "preempted", "held", "resting", "queued", "interrupted"]
)
def test_a_session_can_be_aborted_in_every_state(cls: type[ARScheduler], state: str) -> None:
    """C1, C4, C67: twice, and its id can be used again."""
    stage = in_state(cls, state)
    if state == "queued":
        stage.update("s", 1, 1)
    elif state == "resting":
        stage.interrupt("s")
        stage.drain()
    elif state == "interrupted":
        stage.until(lambda: stage.outcomes["s"].tokens)
        stage.interrupt("s")
        stage.update("s", 1, 1)
    stage.abort("s")
    stage.abort("s")
    stage.drain()
    assert stage.ends("s") == [FinishReason.ABORT]
    assert stage.ends("other") == [FinishReason.LENGTH]
    assert stage.scheduler.num_waiting_for_streaming_input == 0
    stage.check_empty()
    stage.finished.remove("s")
    stage.scheduler.abandon(["s"])
    stage.submit("s", 4, session=True, max_tokens=2)
    stage.drain()
    assert stage.outcomes["s"].tokens == sampled("s", 4, 2)


@BOTH
def test_preemption_changes_nothing_in_a_session(cls: type[ARScheduler]) -> None:
    """C34, C117."""
    stage = Stage(cls, block_size=4, num_blocks=12, max_num_seqs=4, max_model_len=64)
    for number in range(4):
        stage.submit(f"o{number}", 6, max_tokens=12)
    stage.submit("s", 6, session=True, max_tokens=6)
    for epoch in range(1, 4):
        stage.update("s", epoch, 90)
    stage.drain(500)
    assert stage.preemptions
    for epoch in range(4):
        assert stage.outcomes["s"].by_epoch[epoch] == sampled("s", 6 + 6 * epoch, 6)
    stage.abort("s")
    stage.drain()
    stage.check_empty()


@BOTH
@pytest.mark.parametrize("during", [False, True], ids=["between steps", "during a step"])
def test_a_segment_of_which_nothing_counts_keeps_no_block(
    cls: type[ARScheduler], during: bool
) -> None:
    """Its only token is in flight. The next one may find more of its prompt in the prefix cache
    than that token's block.
    """
    stage = Stage(cls, block_size=4, enable_prefix_caching=True)
    stage.submit("other", 13, max_tokens=1)
    stage.drain()
    stage.submit("s", 1, session=True, max_tokens=9)
    if during:
        stage.step(before_update=lambda: stage.interrupt("s"))
    else:
        stage.step()
    stage.interrupt("s")
    stage.update("s", 1, *range(2, 14))
    stage.drain()
    prompt = stage.worker.prompts["s", 1]
    assert prompt[:13] == list(range(1, 14))
    assert stage.outcomes["s"].by_epoch[1] == sampled("s", len(prompt), 9)
    stage.abort("s")
    stage.drain()
    stage.check_empty()
