"""Sessions: a segment ends, the request rests, and goes on with new input."""

from __future__ import annotations

import pytest
from sched_core import sampled, token_at
from sched_engine import Stage
from sched_worker import OUT
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import FinishReason

from antiphon.core.prompt_plan import PromptUpdate, UpdateKind
from antiphon.core.tickets import Ended, Ticket
from antiphon.errors import EmptyInputError, InputTooLongError, InvalidRequestError
from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.sched.events import SegmentEnd
from antiphon.sched.sessions import MAX_QUEUED, SessionUpdate
from factory import make_request

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])
EXTEND, REPLACE, WINDOW = UpdateKind.EXTEND, UpdateKind.REPLACE, UpdateKind.WINDOW


def params(max_tokens: int, *stops: int, logprobs: int | None = None) -> SamplingParams:
    made = SamplingParams(max_tokens=max_tokens, stop_token_ids=list(stops), logprobs=logprobs)
    made.update_from_generation_config({}, None)
    return made


# --- segments -------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("queued", [True, False])
def test_the_golden_example_of_streaming_input(cls: type[ARScheduler], queued: bool) -> None:
    """C49: inputs [A1 B1 C1], [A2 B2], [A3 B3] give D1 | C2 D2 E2 | C3 D3, where the last token
    of each output is not part of what follows.
    """
    names = {3: "D1", 5: "C2", 6: "D2", 7: "E2", 9: "C3", 10: "D3"}
    ids = {name: 500 + position for position, name in names.items()}
    a1, b1, c1, a2, b2, a3, b3 = range(1, 8)
    stage = Stage(cls, token=lambda _uid, position: 500 + position)
    stage.submit("s", tokens=[a1, b1, c1], session=True, max_tokens=1)
    for epoch, tokens, count in ((1, (a2, b2), 3), (2, (a3, b3), 2)):
        if not queued:
            stage.drain()
        stage.update("s", epoch, *tokens, params=params(count))
    stage.drain()
    assert stage.outcomes["s"].by_epoch == {
        0: [ids["D1"]],
        1: [ids["C2"], ids["D2"], ids["E2"]],
        2: [ids["C3"], ids["D3"]],
    }
    assert stage.worker.prompts == {
        ("s", 0): [a1, b1, c1],
        ("s", 1): [a1, b1, c1, a2, b2],
        ("s", 2): [a1, b1, c1, a2, b2, ids["C2"], ids["D2"], a3, b3],
    }
    assert stage.segments == [SegmentEnd("s", epoch, "length") for epoch in range(3)]


@BOTH
def test_a_session_that_rests_is_no_work_and_has_not_ended(cls: type[ARScheduler]) -> None:
    """It is in no queue and keeps its blocks."""
    stage = Stage(cls)
    stage.submit("s", 20, session=True, max_tokens=3)
    stage.drain()
    assert not stage.has_work
    assert stage.ends("s") == []
    assert stage.scheduler.get_num_unfinished_requests() == 0
    assert stage.scheduler.num_waiting_for_streaming_input == 0
    assert stage.held_blocks() == 2
    stage.abort("s")
    stage.drain()
    stage.check_empty()


@BOTH
def test_what_has_been_computed_is_not_computed_again(cls: type[ARScheduler]) -> None:
    stage = Stage(cls)
    stage.submit("s", 20, session=True, max_tokens=3)
    stage.drain()
    stage.update("s", 1, 7, 8, 9)
    done = stage.step()
    assert done.scheduled is not None
    # Two of the outputs are history now; the last of them was fed back in the step that sampled
    # the one which is dropped.
    assert done.scheduled.num_scheduled_tokens == {"s": 3}
    assert done.scheduled.scheduled_new_reqs[0].num_computed_tokens == 22


@BOTH
@pytest.mark.parametrize(
    ("kind", "keep", "expected"),
    [
        (EXTEND, 0, [1, 2, 3, 4, token_at("s", 4), 70, 71]),
        (REPLACE, 0, [70, 71]),
        (WINDOW, 2, [4, token_at("s", 4), 70, 71]),
        (WINDOW, 99, [1, 2, 3, 4, token_at("s", 4), 70, 71]),
        (WINDOW, 0, [70, 71]),
    ],
)
def test_each_kind_of_update_makes_the_prompt_it_says(
    cls: type[ARScheduler], kind: UpdateKind, keep: int, expected: list[int]
) -> None:
    stage = Stage(cls, block_size=4)
    session = stage.submit("s", 4, session=True, max_tokens=2)
    stage.drain()
    stage.update("s", 1, 70, 71, kind=kind, keep=keep)
    twin = make_request("twin", tokens=expected, block_size=4)
    assert session.block_hashes == twin.block_hashes
    stage.drain()
    assert stage.worker.prompts["s", 1] == expected
    assert stage.outcomes["s"].by_epoch[1] == sampled("s", len(expected), 2)
    assert stage.held_blocks() == (len(expected) + 1 + 3) // 4


@BOTH
def test_an_update_without_tokens_samples_the_last_one_again(cls: type[ARScheduler]) -> None:
    stage = Stage(cls)
    stage.submit("s", 4, session=True, max_tokens=3)
    stage.drain()
    stage.update("s", 1)
    stage.drain()
    assert stage.worker.prompts["s", 1] == [1, 2, 3, 4, *sampled("s", 4, 2)]
    assert stage.outcomes["s"].by_epoch[1] == sampled("s", 6, 3)


@BOTH
def test_updates_wait_for_the_segments_before_them(cls: type[ARScheduler]) -> None:
    stage = Stage(cls)
    stage.submit("s", 4, session=True, max_tokens=2)
    for epoch in range(1, 6):
        stage.update("s", epoch, epoch)
    stage.drain()
    assert [end.epoch for end in stage.segments] == [0, 1, 2, 3, 4, 5]
    assert all(len(tokens) == 2 for tokens in stage.outcomes["s"].by_epoch.values())
    assert stage.worker.prompts["s", 5][-1] == 5


@BOTH
def test_a_replacement_ends_the_running_segment_and_drops_what_is_queued(
    cls: type[ARScheduler],
) -> None:
    stage = Stage(cls)
    stage.submit("s", 4, session=True, max_tokens=9)
    stage.update("s", 1, 60)
    stage.step()
    stage.step()
    stage.update("s", 2, 70, 71, kind=REPLACE)
    stage.drain()
    assert stage.segments == [SegmentEnd("s", 0, "interrupt"), SegmentEnd("s", 2, "length")]
    assert stage.worker.prompts["s", 2] == [70, 71]
    assert stage.outcomes["s"].by_epoch[2] == sampled("s", 2, 9)
    assert 1 not in stage.outcomes["s"].by_epoch


@BOTH
def test_each_segment_has_its_own_parameters(cls: type[ARScheduler]) -> None:
    """C47. They hold from their own segment on, also when the update waits."""
    stage = Stage(cls)
    stage.submit("s", 4, session=True, max_tokens=3)
    stage.update("s", 1, 60, params=params(5, token_at("s", 8)))
    stage.update("s", 2, 61)
    stage.drain()
    assert stage.outcomes["s"].by_epoch[0] == sampled("s", 4, 3)
    assert stage.outcomes["s"].by_epoch[1] == sampled("s", 7, 2)
    assert len(stage.outcomes["s"].by_epoch[2]) in (1, 5)
    assert [end.reason for end in stage.segments][:2] == ["length", "stop"]


@BOTH
def test_a_stop_token_is_reported_with_its_own_segment_only(cls: type[ARScheduler]) -> None:
    stage = Stage(cls)
    stop = token_at("s", 5)
    stage.submit("s", 4, session=True, max_tokens=4, stop_token_ids=[stop])
    stage.update("s", 1, 60, params=params(3))
    reasons = []
    while stage.has_work:
        reasons += [out.stop_reason for out in stage.step()]
    assert reasons == [None, stop, None, None, None]


@BOTH
@pytest.mark.parametrize("first", [None, 2])
def test_a_segment_may_want_logprobs_that_another_does_not(
    cls: type[ARScheduler], first: int | None
) -> None:
    """What is in flight of one is not judged by the parameters of the next."""
    stage = Stage(cls)
    second = 2 if first is None else None
    stage.submit("s", 4, session=True, max_tokens=3, logprobs=first)
    stage.update("s", 1, 60, params=params(3, logprobs=second))
    stage.update("s", 2, 61, params=params(3, logprobs=first))
    stage.drain()
    assert stage.ends("s") == []
    assert [len(tokens) for tokens in stage.outcomes["s"].by_epoch.values()] == [3, 3, 3]


@BOTH
def test_the_worker_is_told_of_each_segment(cls: type[ARScheduler]) -> None:
    """C103: a ticket before its tokens, its end after them, rows from its own input on."""
    stage = Stage(cls)
    stage.submit("s", 4, session=True, max_tokens=3, edges=(OUT,))
    stage.update("s", 1, 60, 61)
    stage.drain()
    stage.update("s", 2, 70, kind=REPLACE)
    stage.drain()
    tickets = [t for work in stage.works for t in work.tickets]
    assert tickets == [
        Ticket("s", (OUT,), {}, epoch, first) for epoch, first in ((0, 0), (1, 6), (2, 0))
    ]
    assert [e for work in stage.works for e in work.ended] == [
        Ended("s", True, 7, 0),
        Ended("s", True, 11, 1),
        Ended("s", True, 4, 2),
    ]
    for epoch, tokens in stage.outcomes["s"].by_epoch.items():
        told = [w.tokens["s"] for w in stage.works if "s" in w.tokens]
        assert [t for a in told if a.epoch == epoch for t in a.token_ids] == tokens


# --- what cannot be -------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("queued", [True, False])
def test_an_update_that_does_not_fit_ends_the_session(cls: type[ARScheduler], queued: bool) -> None:
    """Its segment's output is complete; the others go on."""
    stage = Stage(cls, max_model_len=64)
    stage.submit("s", 20, session=True, max_tokens=5)
    stage.submit("other", max_tokens=12)
    if not queued:
        stage.until(lambda: stage.segments)
    stage.update("s", 1, *[1] * 40)
    stage.drain()
    assert stage.outcomes["s"].tokens == sampled("s", 20, 5)
    assert stage.ends("s") == [FinishReason.ERROR]
    assert stage.error_code("s") == InputTooLongError.code
    assert stage.ends("other") == [FinishReason.LENGTH]
    stage.check_empty()


@BOTH
def test_an_update_that_no_cache_could_hold_ends_the_session(cls: type[ARScheduler]) -> None:
    """C13. It would wait for blocks that do not exist."""
    stage = Stage(cls, block_size=4, num_blocks=8, max_model_len=64)
    stage.submit("s", 12, session=True, max_tokens=5)
    stage.drain()
    stage.update("s", 1, *[1] * 20)
    stage.drain()
    assert stage.error_code("s") == InputTooLongError.code
    stage.check_empty()


@BOTH
def test_a_session_may_be_emptied_by_no_update(cls: type[ARScheduler]) -> None:
    stage = Stage(cls)
    stage.submit("s", 4, session=True, max_tokens=2)
    stage.drain()
    stage.update("s", 1, kind=REPLACE)
    stage.drain()
    assert stage.error_code("s") == EmptyInputError.code
    stage.check_empty()


@BOTH
def test_the_models_length_ends_a_segment_and_not_the_session(cls: type[ARScheduler]) -> None:
    stage = Stage(cls, max_model_len=16)
    stage.submit("s", 12, session=True, max_tokens=50)
    stage.drain()
    assert stage.outcomes["s"].tokens == sampled("s", 12, 4)
    stage.update("s", 1, 1, 2, 3, kind=WINDOW, keep=5)
    stage.drain()
    assert stage.outcomes["s"].by_epoch[1] == sampled("s", 8, 8)
    assert [end.reason for end in stage.segments] == ["length", "length"]


def test_updates_that_cannot_be_are_refused() -> None:
    """The session is as it was."""
    stage = Stage()
    stage.submit("s", 4, session=True, max_tokens=2)
    stage.submit("plain")
    update = stage.sessions.update_session
    for uid in ("plain", "nobody"):
        with pytest.raises(InvalidRequestError, match="no session"):
            update(uid, SessionUpdate(1, PromptUpdate(EXTEND, (1,))))
    update("s", SessionUpdate(2, PromptUpdate(EXTEND, (1,))))
    for epoch in (0, 1, 2):
        with pytest.raises(InvalidRequestError, match="not newer"):
            update("s", SessionUpdate(epoch, PromptUpdate(EXTEND, (1,))))
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        update("s", SessionUpdate(3, PromptUpdate(EXTEND, (1,)), SamplingParams(max_tokens=None)))
    for number in range(MAX_QUEUED - 1):
        update("s", SessionUpdate(3 + number, PromptUpdate(EXTEND, (1,))))
    with pytest.raises(InvalidRequestError, match="wait for the segment's end"):
        update("s", SessionUpdate(999, PromptUpdate(EXTEND, (1,))))
    stage.drain()
    assert len(stage.segments) == 1 + MAX_QUEUED
