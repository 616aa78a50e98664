"""One request's fault stays its own, aborts work in every state, and sleep loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from antiphon.stage.messages import Abort, Aborted, Acknowledged, Sleep, Wake
from tiny import Driven
from tiny_adapters import SEEN
from tiny_stage_model import CROOKED, FRAIL, POISON

LONG = [(3 * j) % 90 + 1 for j in range(70)]


@pytest.fixture
def stage(roomy: Driven) -> Driven:
    roomy.clear()
    return roomy


@pytest.fixture(params=["special", "special_overlapped"])
def fragile(request: pytest.FixtureRequest) -> Iterator[Driven]:
    """The stage whose model can fall over; whatever a test did to it, it works afterwards."""
    special: Driven = request.getfixturevalue(request.param)
    special.clear()
    yield special
    special.discard()
    special.assert_empty()
    special.clear()
    special.submit("afterwards", [1, 2, 3])
    special.run()
    assert [end.finish for end in special.endings("afterwards")] == ["length"]


# --- bad requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token_ids", "sampling", "code"),
    [
        ([1], {"nonsense": 1}, "invalid_parameter"),
        ([1], {"temperature": -1.0}, "invalid_parameter"),
        ([1], {"max_tokens": 0}, "invalid_parameter"),
        ([1], {"max_tokens": None}, "invalid_parameter"),
        ([1], {"logprobs": 10_000}, "invalid_parameter"),
        ([1], {"allowed_token_ids": [5000]}, "invalid_parameter"),
        ([1], {"allowed_token_ids": []}, "invalid_parameter"),
        ([1], {"logit_bias": {5000: 1.0}}, "invalid_parameter"),
        ([5000], {}, "invalid_parameter"),
        ([-1], {}, "invalid_parameter"),
        ([], {}, "empty_input"),
        ([1] * 256, {}, "input_too_long"),
    ],
)
def test_a_bad_request_is_one_typed_error(
    stage: Driven, token_ids: list[int], sampling: dict[str, object], code: str
) -> None:
    """Nothing of it stays, and the next request is served."""
    stage.submit("bad", token_ids, sampling=sampling, edges=("ids",))
    stage.submit("good", [1, 2])
    stage.run()
    (output,) = stage.outputs("bad")
    assert output.finish == "error"
    assert output.error is not None
    assert output.error.code == code
    assert "\n" not in output.error.message
    assert len(stage.tokens("good")) == 8
    assert stage.refs() == []
    stage.assert_empty()


def test_a_uid_that_is_alive_is_refused(stage: Driven) -> None:
    """C87: and the first one goes on."""
    stage.submit("x", [1, 2])
    stage.host.step()
    stage.submit("x", [3])
    stage.run()
    error, *rest = [out for out in stage.outputs("x") if out.error is not None]
    assert (error.error.code, rest) == ("duplicate_request", [])  # type: ignore[union-attr]
    assert len(stage.tokens("x")) == 8
    stage.assert_empty()


def test_a_prompt_of_the_whole_length_but_one_is_served(stage: Driven) -> None:
    stage.submit("x", [1] * 255)
    stage.run()
    assert len(stage.tokens("x")) == 1
    assert [end.finish for end in stage.endings("x")] == ["length"]


# --- faults in a step -----------------------------------------------------------------------------


def test_a_model_that_raises_fails_the_requests_of_the_step(fragile: Driven) -> None:
    """C63: one error each; a request that was not part of the step is served."""
    fragile.submit("batch-mate", [1, 2], edges=("rows",))
    fragile.submit("poison", [1, POISON], edges=("rows",))
    fragile.submit("waiting", [3, 4], edges=("rows",))
    fragile.run()
    for uid in ("batch-mate", "poison"):
        (output,) = fragile.outputs(uid)
        assert output.finish == "error"
        assert output.error is not None
        assert output.error.code == "stage_step"
        assert output.error.message.endswith("RuntimeError: the model fell over")
        assert f"'{fragile.spec.name}'" in output.error.message
    assert [end.finish for end in fragile.endings("waiting")] == ["length"]
    assert [ref.uid for ref in fragile.refs()] == ["waiting"]
    assert len(SEEN["rows", "waiting"].rows) == 9


def test_a_model_that_raises_in_mid_decode(fragile: Driven) -> None:
    """C63: what had been generated is delivered, then the error, and no success after it."""
    fragile.submit("x", [1, 2], sampling={"max_tokens": 100}, edges=("rows",))
    fragile.host.step()
    fragile.host.step()
    fragile.submit("poison", [POISON])
    fragile.run()
    assert 1 <= len(fragile.tokens("x")) <= 2
    assert [end.finish for end in fragile.endings("x")] == ["error"]
    assert fragile.refs() == []


def test_a_step_that_fails_while_it_is_sampled(fragile: Driven) -> None:
    """C63: the forward has succeeded by then; nothing of the step is left for the next one."""
    fragile.submit("frail", [1, FRAIL], edges=("side",))
    fragile.submit("batch-mate", [1, 2])
    fragile.submit("waiting", [3, 4], edges=("rows",))
    fragile.run()
    for uid in ("frail", "batch-mate"):
        (output,) = fragile.outputs(uid)
        assert output.error is not None
        assert output.error.code == "stage_step"
    assert [end.finish for end in fragile.endings("waiting")] == ["length"]
    assert SEEN["rows", "waiting"].positions == list(range(9))


def test_ten_failing_steps_leave_nothing(fragile: Driven) -> None:
    for index in range(10):
        fragile.submit(f"p{index}", [1, POISON], edges=("rows",))
    fragile.run()
    assert [len(fragile.endings(f"p{index}")) for index in range(10)] == [1] * 10


@pytest.mark.parametrize("at", ["open", "rows", "tokens", "end"])
def test_an_adapter_that_raises_fails_its_request(fragile: Driven, at: str) -> None:
    """The other request of the batch has its rows; the broken one has one error and no payload."""
    fragile.submit("bad", [1, 2], edges=(f"fail-{at}",), params={"broken": True})
    fragile.submit("good", [1, 2], edges=("rows",))
    fragile.run()
    errors = [out for out in fragile.outputs("bad") if out.error is not None]
    assert [(out.finish, out.error.code) for out in errors] == [("error", "adapter")]  # type: ignore[union-attr]
    assert [ref.uid for ref in fragile.refs()] == ["good"]
    assert len(SEEN["rows", "good"].rows) == 9


def test_an_edge_that_the_stage_does_not_have(fragile: Driven) -> None:
    fragile.submit("bad", [1, 2], edges=("nowhere",))
    fragile.run()
    (end,) = fragile.endings("bad")
    assert end.error is not None
    assert "nowhere" in end.error.message


# --- side outputs ---------------------------------------------------------------------------------


def test_side_outputs_have_the_layout_that_the_model_declared(fragile: Driven) -> None:
    """C26: per token, per request and shared, in a batch of a prompt and a decode."""
    fragile.submit("a", [1, 2, 3], edges=("side", "rows"))
    fragile.host.step()
    fragile.submit("b", [4, 5, 6, 7], edges=("side", "rows"))
    fragile.run()
    for uid, prompt in (("a", 3), ("b", 4)):
        side, rows = SEEN["side", uid], SEEN["rows", uid]
        assert side.positions == rows.positions == list(range(prompt + 7))
        for step, with_hidden in zip(side.steps, rows.steps, strict=True):
            assert step.hidden is None  # not asked for
            assert with_hidden.hidden is not None
            assert (step.side["double"] - 2 * with_hidden.hidden).abs().max() < 1e-6
        assert [step.side["length"].tolist() for step in side.steps] == [[prompt]] + [[1]] * 7
        shared = [step.side["table"].tolist() for step in side.steps if "table" in step.side]
        assert shared == [[0, 1, 2]]  # once per request


def test_a_side_output_of_a_wrong_length_fails_the_requests_concerned(fragile: Driven) -> None:
    """C26: shapes are never guessed; a request that wants no tensors is not concerned."""
    fragile.submit("wants", [1, CROOKED], edges=("side",))
    fragile.submit("wants-not", [1, 2], edges=("ids", "rows"))
    fragile.run()
    (end,) = fragile.endings("wants")
    assert end.error is not None
    assert end.error.code == "payload"
    assert "'double'" in end.error.message
    assert [end.finish for end in fragile.endings("wants-not")] == ["length"]


def test_a_side_output_that_the_model_does_not_make_is_an_error(fragile: Driven) -> None:
    fragile.submit("x", [1, 2], edges=("missing",))
    fragile.run()
    (end,) = fragile.endings("x")
    assert end.error is not None
    assert "nothing" in end.error.message


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
    """C29, C33: a prompt in the prefix cache would leave its rows out; it is computed anew."""
    found = []
    for uid in ("a", "b", "c"):
        cached.clear()
        cached.submit(uid, LONG, edges=("rows",))
        cached.run()
        assert [end.error for end in cached.endings(uid)] == [None]
        found.append(SEEN["rows", uid].rows)
        assert SEEN["rows", uid].positions == list(range(77))
        cached.discard()
    assert all(rows.equal(found[0]) for rows in found)
