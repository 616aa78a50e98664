"""One request's fault stays its own: bad requests, models and adapters that raise, odd outputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from antiphon.errors import from_wire
from antiphon.testing.fault_table import Fault
from engine_pool import EnginePool
from tiny import Driven
from tiny_adapters import SEEN
from tiny_specs import special_spec
from tiny_stage_model import CROOKED, EARLY, FRAIL, HUNGRY, POISON, STARVED


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
    ends = [end.finish for end in special.endings("afterwards")]
    assert ends == ["length"], (special.events, special.inspect(), special.host.has_work)


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


@pytest.mark.fault("model-raises")
def test_a_model_that_raises_fails_the_requests_of_the_step(fragile: Driven, fault: Fault) -> None:
    """C51, C63: one error each; a request that was not part of the step is served."""
    fragile.submit("batch-mate", [1, 2], edges=("rows",))
    fragile.submit("poison", [1, POISON], edges=("rows",))
    fragile.submit("waiting", [3, 4], edges=("rows",))
    fragile.run()
    for uid in ("batch-mate", "poison"):
        (output,) = fragile.outputs(uid)
        assert output.finish == "error"
        assert output.error is not None
        assert type(from_wire(output.error)) is fault.error
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


@pytest.fixture(scope="module", params=[False, True], ids=["sync", "async"])
def prefixed(engines: EnginePool, model_special: str, request: pytest.FixtureRequest) -> Driven:
    """The special model with upstream's prefix cache."""
    over = {"enable_prefix_caching": True, "async_scheduling": request.param}
    stage: Driven = engines.stage(special_spec(f"prefixed-{request.param}", model_special, **over))
    return stage


def test_what_a_failed_step_did_not_write_is_not_found(prefixed: Driven) -> None:
    """Upstream's prefix cache knows the blocks of a step before they have been written."""
    prompt = [1 + (7 * i) % 100 for i in range(80)]
    stage = prefixed
    stage.clear()
    stage.submit("before", prompt)
    stage.submit("early", [1, EARLY])
    stage.run()
    assert [end.finish for end in stage.endings("before")] == ["error"]
    stage.submit("again", prompt)
    stage.run()
    assert stage.cached_tokens("again") == 0
    stage.submit("once more", prompt)
    stage.run()
    assert stage.cached_tokens("once more") == 64
    assert stage.tokens("again") == stage.tokens("once more")
    stage.assert_empty()


def test_no_output_comes_out_of_the_prefix_cache(prefixed: Driven) -> None:
    """C32, C30: whatever an output belongs to, tokens, the request or nobody, each request has what
    its own steps made. The cache serves it again once nothing is owed.
    """
    prompt = [1 + (3 * i) % 100 for i in range(80)]
    found = []
    for number in range(4):
        prefixed.clear()
        prefixed.submit(f"r{number}", prompt, edges=("side", "rows"))
        prefixed.run()
        assert prefixed.cached_tokens(f"r{number}") == 0
        side = SEEN["side", f"r{number}"]
        assert side.positions == SEEN["rows", f"r{number}"].positions == list(range(87))
        found.append([{k: v.tolist() for k, v in step.side.items()} for step in side.steps])
        prefixed.discard()
    assert found[1:] == found[:1] * 3
    prefixed.clear()
    prefixed.submit("plain", prompt)
    prefixed.run()
    assert prefixed.cached_tokens("plain") == 64
    prefixed.assert_empty()


@pytest.mark.fault("model-out-of-memory")
@pytest.mark.parametrize(
    ("token", "said"), [(HUNGRY, "OutOfMemoryError"), (STARVED, "MemoryError")]
)
def test_a_step_without_memory(fragile: Driven, fault: Fault, token: int, said: str) -> None:
    """On the device, or in the process: its requests fail, and the stage goes on."""
    fragile.submit("large", [1, token], edges=("rows",))
    fragile.submit("batch-mate", [1, 2])
    fragile.submit("waiting", [3, 4], edges=("rows",))
    fragile.run()
    for uid in ("large", "batch-mate"):
        (output,) = fragile.outputs(uid)
        assert output.error is not None
        assert type(from_wire(output.error)) is fault.error
        assert said in output.error.message
    assert [end.finish for end in fragile.endings("waiting")] == ["length"]
    assert [ref.uid for ref in fragile.refs()] == ["waiting"]
    assert fault.restarted is None


@pytest.mark.fault("sampling-raises")
def test_a_step_that_fails_while_it_is_sampled(fragile: Driven, fault: Fault) -> None:
    """C63: the forward has succeeded by then; nothing of the step is left for the next one."""
    fragile.submit("frail", [1, FRAIL], edges=("side",))
    fragile.submit("batch-mate", [1, 2])
    fragile.submit("waiting", [3, 4], edges=("rows",))
    fragile.run()
    for uid in ("frail", "batch-mate"):
        (output,) = fragile.outputs(uid)
        assert output.error is not None
        assert type(from_wire(output.error)) is fault.error
    assert [end.finish for end in fragile.endings("waiting")] == ["length"]
    assert SEEN["rows", "waiting"].positions == list(range(9))


def test_ten_failing_steps_leave_nothing(fragile: Driven) -> None:
    for index in range(10):
        fragile.submit(f"p{index}", [1, POISON], edges=("rows",))
    fragile.run()
    assert [len(fragile.endings(f"p{index}")) for index in range(10)] == [1] * 10


@pytest.mark.fault("output-adapter-raises")
@pytest.mark.parametrize("at", ["open", "rows", "tokens", "end"])
def test_an_adapter_that_raises_fails_its_request(fragile: Driven, fault: Fault, at: str) -> None:
    """The other request of the batch has its rows; the broken one has one error and no payload."""
    fragile.submit("bad", [1, 2], edges=(f"fail-{at}",), params={"broken": True})
    fragile.submit("good", [1, 2], edges=("rows",))
    fragile.run()
    errors = [out for out in fragile.outputs("bad") if out.error is not None]
    assert [out.finish for out in errors] == ["error"]
    assert [type(from_wire(out.error)) for out in errors if out.error] == [fault.error]
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


@pytest.mark.fault("materialisation")
def test_a_side_output_of_a_wrong_length_fails_the_requests_concerned(
    fragile: Driven, fault: Fault
) -> None:
    """C26: shapes are never guessed; a request that wants no tensors is not concerned."""
    fragile.submit("wants", [1, CROOKED], edges=("side",))
    fragile.submit("wants-not", [1, 2], edges=("ids", "rows"))
    fragile.run()
    (end,) = fragile.endings("wants")
    assert end.error is not None
    assert type(from_wire(end.error)) is fault.error
    assert "'double'" in end.error.message
    assert [end.finish for end in fragile.endings("wants-not")] == ["length"]


def test_a_side_output_that_the_model_does_not_make_is_an_error(fragile: Driven) -> None:
    fragile.submit("x", [1, 2], edges=("missing",))
    fragile.run()
    (end,) = fragile.endings("x")
    assert end.error is not None
    assert "nothing" in end.error.message
