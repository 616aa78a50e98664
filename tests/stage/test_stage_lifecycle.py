"""Aborts in every state, sleep and wake, and what the prefix cache may give."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon.stage.messages import Abort, Aborted, Acknowledged, Sleep, Wake
from tiny import Driven
from tiny_adapters import SEEN

LONG = [(3 * j) % 90 + 1 for j in range(70)]


@pytest.fixture
def stage(roomy: Driven) -> Driven:
    roomy.clear()
    return roomy


# --- aborts ---------------------------------------------------------------------------------------


def _queued(stage: Driven) -> None:
    for index in range(9):  # on eight places
        stage.submit(f"other{index}", LONG, sampling={"max_tokens": 3})
    stage.submit("x", LONG, edges=("rows",))
    stage.host.step()


def _new(stage: Driven) -> None:
    stage.submit("x", LONG, edges=("rows",))


def _decoding(stage: Driven) -> None:
    stage.submit("x", LONG, edges=("rows", "ids"), sampling={"max_tokens": 50})
    for _ in range(5):
        stage.host.step()


def _finished(stage: Driven) -> None:
    stage.submit("x", LONG, sampling={"max_tokens": 1})
    stage.run()


def _unknown(stage: Driven) -> None:
    pass


@pytest.mark.parametrize("name", ["roomy", "overlapped", "cramped", "cramped_overlapped"])
@pytest.mark.parametrize("prepare", [_new, _queued, _decoding, _finished, _unknown])
def test_an_abort_in_every_state(
    name: str, prepare: Callable[[Driven], None], request: pytest.FixtureRequest
) -> None:
    """C1, C2, C5: acknowledged once, blocks back, nothing after the acknowledgement."""
    stage: Driven = request.getfixturevalue(name)
    stage.clear()
    prepare(stage)
    stage.submit("bystander", [1, 2])
    answer = stage.abort("x")
    heard = len(stage.outputs("x"))
    assert "x" not in stage.scheduler.requests
    stage.run()
    assert len(stage.outputs("x")) == heard
    assert [e for e in stage.events if isinstance(e, Aborted)] == [answer]
    assert [end.finish for end in stage.endings("bystander")] == ["length"]
    assert [ref for ref in stage.refs() if ref.uid == "x"] == []
    stage.assert_empty()


@pytest.mark.parametrize("name", ["cramped", "cramped_overlapped"])
def test_an_abort_of_a_preempted_request(name: str, request: pytest.FixtureRequest) -> None:
    stage: Driven = request.getfixturevalue(name)
    stage.clear()
    for index in range(4):
        stage.submit(f"r{index}", LONG, sampling={"max_tokens": 60}, edges=("rows",))
    requests = stage.scheduler.requests

    def preempted() -> list[str]:
        return [uid for uid, r in requests.items() if r.status.name == "PREEMPTED"]

    stage.run_until(lambda: bool(preempted()))
    victim = preempted()[0]
    stage.abort(victim)
    stage.run()
    assert sorted(ref.uid for ref in stage.refs()) == sorted({f"r{i}" for i in range(4)} - {victim})
    stage.discard()
    stage.assert_empty()


def test_a_uid_may_be_used_again_once_its_abort_is_acknowledged(stage: Driven) -> None:
    """C87: not before, and then it is a fresh request."""
    stage.submit("x", LONG, sampling={"max_tokens": 50}, edges=("ids",))
    for _ in range(3):
        stage.host.step()
    stage.host.handle(Abort(["x"], 5))
    stage.submit("x", [9, 8, 7], edges=("ids",))
    assert stage.endings("x")[0].error.code == "duplicate_request"  # type: ignore[union-attr]
    stage.run()
    stage.clear()
    stage.submit("x", [9, 8, 7], edges=("ids",))
    stage.run()
    assert SEEN["ids", "x"].tokens == stage.tokens("x")
    assert len(stage.tokens("x")) == 8
    stage.discard()
    stage.assert_empty()


# --- sleep ----------------------------------------------------------------------------------------


def acknowledged(stage: Driven, token: int) -> list[Acknowledged]:
    return [e for e in stage.events if isinstance(e, Acknowledged) and e.token == token]


def test_requests_wait_while_the_stage_sleeps(stage: Driven) -> None:
    """C55: both are acknowledged, on CPU with 0 bytes; calling twice does no harm."""
    for token in (1, 2):
        assert stage.ask(Sleep(1, token)) == Acknowledged(token, 0)
    stage.submit("x", [1, 2, 3])
    stage.run()
    assert stage.outputs("x") == []
    for token in (3, 4):
        assert stage.ask_first(Wake(None, token)) == Acknowledged(token, 0)
    stage.run()
    assert len(stage.tokens("x")) == 8
    stage.assert_empty()


def test_a_stage_sleeps_once_its_running_requests_have_finished(stage: Driven) -> None:
    stage.submit("running", [1, 2, 3], sampling={"max_tokens": 20})
    stage.host.step()
    stage.host.handle(Sleep(1, 7))
    stage.submit("later", [1, 2, 3])
    assert acknowledged(stage, 7) == []
    stage.run()
    assert len(stage.tokens("running")) == 20
    assert acknowledged(stage, 7) == [Acknowledged(7, 0)]
    assert stage.outputs("later") == []
    stage.host.handle(Wake(None, 8))
    stage.run()
    assert len(stage.tokens("later")) == 8


def test_a_stage_that_is_woken_in_part_still_sleeps(stage: Driven) -> None:
    stage.host.handle(Sleep(1, 1))
    stage.submit("x", [1, 2, 3])
    stage.host.handle(Wake(["weights"], 2))
    assert not stage.host.has_work
    stage.host.handle(Wake(["kv_cache"], 3))
    stage.run()
    assert len(stage.tokens("x")) == 8


def test_waking_what_does_not_exist_is_an_error(stage: Driven) -> None:
    stage.host.handle(Sleep(1, 1))
    stage.host.handle(Wake(["nonsense"], 2))
    (answer,) = acknowledged(stage, 2)
    assert answer.error is not None
    stage.host.handle(Wake(None, 3))
    assert acknowledged(stage, 3)[0].error is None


def test_a_request_aborted_while_the_stage_sleeps(stage: Driven) -> None:
    stage.host.handle(Sleep(1, 1))
    stage.submit("x", [1, 2, 3])
    stage.submit("y", [1, 2, 3])
    stage.abort("x")
    stage.host.handle(Wake(None, 2))
    stage.run()
    assert stage.outputs("x") == []
    assert len(stage.tokens("y")) == 8
    stage.assert_empty()


# --- prefix cache ---------------------------------------------------------------------------------


def test_sleep_forgets_the_prefix_cache(cached: Driven) -> None:
    """C123: blocks that are gone are never found again; awake, the same prompt is."""
    hits = []
    answers = []
    for uid, sleeps in (("a", False), ("b", False), ("c", True)):
        cached.clear()
        if sleeps:
            cached.host.handle(Sleep(1, 1))
            cached.host.handle(Wake(None, 2))
        cached.submit(uid, LONG)
        cached.run()
        hits.append(cached.cached_tokens(uid))
        answers.append(cached.tokens(uid))
    assert hits == [0, 64, 0]
    assert answers[0] == answers[1] == answers[2]


def test_a_request_that_owes_rows_computes_them(cached: Driven) -> None:
    """C29, C30, C33: a prompt in the prefix cache would leave its rows out; it is computed anew.

    The same request four times gives the same four times, to the bit.
    """
    found = []
    answers = []
    for uid in ("a", "b", "c", "d"):
        cached.clear()
        cached.submit(uid, LONG, edges=("rows",))
        cached.run()
        assert [end.error for end in cached.endings(uid)] == [None]
        found.append(SEEN["rows", uid].rows)
        answers.append(cached.tokens(uid))
        assert SEEN["rows", uid].positions == list(range(77))
        cached.discard()
    assert all(rows.equal(found[0]) for rows in found)
    assert answers == [answers[0]] * 4


def test_no_wait_runs_out_while_the_stage_sleeps(listener: Driven) -> None:
    """What would end the wait is held meanwhile, so its time stands still."""
    listener.clear()
    listener.submit("gated", waits_for="ids", wait_timeout_s=50.0)
    assert listener.host.scheduler.next_due() is not None
    listener.host.handle(Sleep(1, 1))
    assert listener.host.scheduler.next_due() is None
    listener.host.handle(Wake(None, 2))
    assert listener.host.scheduler.next_due() is not None
    listener.abort("gated")
    listener.assert_empty()
