"""Sessions in a real stage: each segment answers as a fresh request with the same history would."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import InputTooLongError, InvalidRequestError
from antiphon.stage.messages import Interrupt, Interrupted, Sleep, Step, Update, Wake
from tiny import MAX_LEN, Driven
from tiny_adapters import SEEN

A, B, C = [5, 17, 80, 3, 44, 91, 12], [9, 33, 61], [70, 8]
SIX = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}
STAGES = ["roomy", "overlapped", "cramped", "cramped_overlapped"]


@pytest.fixture(params=STAGES)
def stage(request: pytest.FixtureRequest) -> Driven:
    driven: Driven = request.getfixturevalue(request.param)
    driven.clear()
    return driven


def begin(stage: Driven, uid: str = "s", prompt: list[int] = A, **given: Any) -> None:
    stage.submit(uid, prompt, session=True, sampling=SIX, **given)


def update(
    stage: Driven,
    epoch: int,
    token_ids: list[int],
    kind: UpdateKind = UpdateKind.EXTEND,
    uid: str = "s",
    **given: Any,
) -> None:
    stage.host.handle(Update(uid, epoch, kind, token_ids, **given))


def answer(stage: Driven, epoch: int, uid: str = "s") -> list[int]:
    """The tokens of one segment."""
    return [t for out in stage.outputs(uid) if out.epoch == epoch for t in out.token_ids]


def ends(stage: Driven, uid: str = "s") -> list[tuple[int, str]]:
    """(segment, why it ended), in order."""
    found = stage.outputs(uid)
    return [(o.epoch, o.segment_finish) for o in found if o.segment_finish is not None]


def afresh(stage: Driven, prompt: list[int], sampling: dict[str, Any] | None = None) -> list[int]:
    """What a request without a history answers."""
    stage.submit("fresh", prompt, sampling=SIX | (sampling or {}))
    stage.run()
    found = stage.tokens("fresh")
    stage.events[:] = [e for e in stage.events if not _is_of(e, "fresh")]
    stage.frames[:] = [[] for _ in stage.events]
    return found


def _is_of(event: Any, uid: str) -> bool:
    return isinstance(event, Step) and any(out.uid == uid for out in event.outputs)


def test_segments_continue_each_other(stage: Driven) -> None:
    """C49: the last token of a segment has never been fed back and is no part of the history."""
    begin(stage)
    stage.run()
    first = answer(stage, 0)
    update(stage, 1, B)
    stage.run()
    second = answer(stage, 1)
    update(stage, 2, C)
    stage.run()
    assert ends(stage) == [(0, "length"), (1, "length"), (2, "length")]
    assert not stage.endings("s")
    third = answer(stage, 2)
    assert first == afresh(stage, A)
    history = A + first[:-1] + B
    assert second == afresh(stage, history)
    assert third == afresh(stage, history + second[:-1] + C)
    assert second != afresh(stage, A + first + B)  # the negative control
    stage.abort("s")
    stage.assert_empty()


def test_updates_queue_behind_the_running_segment(stage: Driven) -> None:
    """C45: two updates before the first one begins."""
    begin(stage)
    stage.host.step()
    update(stage, 1, B)
    update(stage, 2, C)
    stage.run()
    first, second, third = (answer(stage, epoch) for epoch in range(3))
    assert [len(a) for a in (first, second, third)] == [6, 6, 6]
    assert second == afresh(stage, A + first[:-1] + B)
    assert third == afresh(stage, A + first[:-1] + B + second[:-1] + C)
    stage.abort("s")
    stage.assert_empty()


@pytest.mark.parametrize("steps", range(6))
def test_a_replacement_starts_over_at_once(stage: Driven, steps: int) -> None:
    begin(stage)
    for _ in range(steps):
        stage.host.step()
    update(stage, 1, B, UpdateKind.REPLACE)
    stage.run()
    assert ends(stage)[-1] == (1, "length")
    assert answer(stage, 1) == afresh(stage, B)
    stage.abort("s")
    stage.assert_empty()


def test_a_window_keeps_a_tail(stage: Driven) -> None:
    begin(stage)
    stage.run()
    history = A + answer(stage, 0)[:-1]
    update(stage, 1, B, UpdateKind.WINDOW, keep=4)
    stage.run()
    assert answer(stage, 1) == afresh(stage, history[-4:] + B)
    stage.abort("s")
    stage.assert_empty()


@pytest.mark.parametrize("steps", range(7))
def test_nothing_of_an_interrupted_segment_comes_later(stage: Driven, steps: int) -> None:
    """C41, C42, C97: with none, one and two frames in flight; the partial answer stays history."""
    begin(stage)
    for _ in range(steps):
        stage.host.step()
    stage.host.handle(Interrupt("s", 7))
    at = next(i for i, e in enumerate(stage.events) if isinstance(e, Interrupted))
    said = answer(stage, 0)
    update(stage, 1, B)
    stage.run()
    later = [o for e in stage.events[at:] if isinstance(e, Step) for o in e.outputs]
    assert not [out for out in later if out.epoch == 0]
    if len(said) < 6:
        assert ends(stage)[0] == (0, "interrupt")
    assert ends(stage)[-1] == (1, "length")
    history = A + said[:-1] + B
    assert answer(stage, 1) == afresh(stage, history)
    stage.abort("s")
    stage.assert_empty()


def test_a_segment_has_its_own_sampling(stage: Driven) -> None:
    """C47: from its own segment on."""
    begin(stage)
    stage.host.step()
    update(stage, 1, B, sampling={"temperature": 0.0, "max_tokens": 2, "ignore_eos": True})
    update(stage, 2, C)
    stage.run()
    assert [len(answer(stage, epoch)) for epoch in range(3)] == [6, 2, 2]
    stage.abort("s")
    stage.assert_empty()


@pytest.mark.parametrize("epochs", [2])
def test_each_segment_feeds_a_stream_of_its_own(stage: Driven, epochs: int) -> None:
    """Rows of a segment are those of its new positions, and its stream has one end."""
    begin(stage, edges=("rows", "ids"))
    stage.run()
    first = answer(stage, 0)
    assert SEEN["rows", "s"].positions == list(range(len(A) + 5))
    update(stage, 1, B)
    stage.run()
    start = len(A) + 5
    assert SEEN["rows", "s"].positions == list(range(start, start + len(B) + 5))
    assert SEEN["ids", "s"].tokens == answer(stage, 1) != first
    stage.run()
    last = [(ref.edge, ref.epoch) for ref in stage.refs() if ref.end]
    assert sorted(last) == [("ids", 0), ("ids", 1), ("rows", 0), ("rows", 1)]
    stage.abort("s")
    stage.discard()
    stage.assert_empty()


def test_a_session_that_grows_too_long_ends_with_an_error(stage: Driven) -> None:
    begin(stage)
    stage.run()
    update(stage, 1, [1] * MAX_LEN)
    stage.run()
    (end,) = stage.endings("s")
    assert end.error is not None
    assert end.error.code == InputTooLongError.code
    stage.assert_empty()


def test_what_is_no_session_takes_no_update(stage: Driven) -> None:
    stage.submit("plain", A, sampling=SIX)
    update(stage, 1, B, uid="plain")
    stage.run()
    (end,) = stage.endings("plain")
    assert end.error is not None
    assert end.error.code == InvalidRequestError.code
    update(stage, 1, B, uid="nobody")
    assert stage.endings("nobody")[0].error is not None
    stage.assert_empty()


def test_an_idle_session_is_no_work(stage: Driven) -> None:
    """It keeps its blocks, and the engine sleeps."""
    begin(stage)
    stage.run()
    assert not stage.host.has_work
    seen = stage.inspect()
    assert seen.requests == 1
    assert seen.free_blocks < seen.total_blocks - 1
    stage.abort("s")
    stage.assert_empty()


def test_others_run_while_a_session_rests(stage: Driven) -> None:
    begin(stage)
    stage.run()
    others = [f"o{index}" for index in range(4)]
    for uid in others:
        stage.submit(uid, B, sampling=SIX)
    stage.run()
    assert all(stage.tokens(uid) == stage.tokens("o0") for uid in others)
    update(stage, 1, C)
    stage.run()
    assert answer(stage, 1) == afresh(stage, A + answer(stage, 0)[:-1] + C)
    stage.abort("s")
    stage.assert_empty()


def test_a_segments_seed_is_its_own(stage: Driven) -> None:
    """C47: the same seed gives the same tokens whatever was sampled before."""
    sampling = {"temperature": 1.0, "seed": 11, "max_tokens": 6, "ignore_eos": True}
    begin(stage)
    stage.run()
    update(stage, 1, B, UpdateKind.REPLACE, sampling=sampling)
    stage.run()
    update(stage, 2, B, UpdateKind.REPLACE, sampling=sampling)
    stage.run()
    update(stage, 3, B, UpdateKind.REPLACE, sampling=sampling | {"seed": 12})
    stage.run()
    assert answer(stage, 1) == answer(stage, 2) == afresh(stage, B, sampling)
    assert answer(stage, 3) != answer(stage, 1)
    stage.abort("s")
    stage.assert_empty()


def test_a_session_survives_a_sleep(stage: Driven) -> None:
    """C123: its blocks are given up and its history is computed again."""
    begin(stage)
    stage.run()
    first = answer(stage, 0)
    stage.ask(Sleep(1, 1))
    assert stage.inspect().free_blocks == stage.inspect().total_blocks - 1
    update(stage, 1, B)
    assert not stage.host.has_work
    stage.ask(Wake(None, 2))
    stage.run()
    assert answer(stage, 1) == afresh(stage, A + first[:-1] + B)
    stage.abort("s")
    stage.assert_empty()


def test_an_update_that_is_held_can_be_interrupted(stage: Driven) -> None:
    """It begins when the stage wakes, and ends at once."""
    begin(stage)
    stage.run()
    stage.ask(Sleep(1, 1))
    update(stage, 1, B)
    stage.host.handle(Interrupt("s", 7))
    stage.ask(Wake(None, 2))
    stage.run()
    assert ends(stage)[-1] == (1, "interrupt")
    assert answer(stage, 1) == []
    assert [e for e in stage.events if isinstance(e, Interrupted)]
    stage.abort("s")
    stage.assert_empty()


def test_an_abort_answers_an_interrupt_that_is_held(stage: Driven) -> None:
    begin(stage)
    stage.run()
    stage.ask(Sleep(1, 1))
    update(stage, 1, B)
    stage.host.handle(Interrupt("s", 7))
    stage.abort("s")
    assert [e for e in stage.events if isinstance(e, Interrupted)]
    stage.ask(Wake(None, 2))
    stage.assert_empty()


def test_a_segment_cannot_bring_structured_output(stage: Driven) -> None:
    """C47: what would not take effect is refused, never dropped."""
    begin(stage)
    stage.run()
    update(stage, 1, B, sampling=SIX | {"structured_outputs": {"choice": ["a", "b"]}})
    stage.run()
    (end,) = stage.endings("s")
    assert end.error is not None
    assert end.error.code == InvalidRequestError.code
    stage.assert_empty()


def test_a_session_does_not_wait_for_another_stage(stage: Driven) -> None:
    stage.submit("s", session=True, waits_for="rows", sampling=SIX)
    (end,) = stage.endings("s")
    assert end.error is not None
    assert end.error.code == InvalidRequestError.code
    stage.assert_empty()
