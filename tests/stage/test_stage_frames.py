"""A talker with a decode hook gives transformers' frames, whatever scheduling did.

Its prompts are made in the stage itself, of a caller's token ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import checked
from antiphon.payload.types import Scalar
from antiphon.worker.frames import Frames
from engine_pool import EnginePool
from tiny import VOCAB, Driven
from tiny_adapters import SEEN
from tiny_specs import talker_spec
from tiny_talker import CLUMSY, FRAME, SHORT, Reference

IDS = [tuple(1000 + 7 * i + 3 * j for j in range(4 + 11 * i)) for i in range(6)]
ROWS: dict[str, Scalar] = {"rows": 9, "padding": True}
STAGES = ["talker_roomy", "talker_cramped", "talker_overlapped", "talker_cramped_overlapped"]


@pytest.fixture(scope="module")
def oracle(model_talker: str) -> Reference:
    return Reference(model_talker)


@pytest.fixture(params=STAGES)
def stage(request: pytest.FixtureRequest) -> Driven:
    found: Driven = request.getfixturevalue(request.param)
    found.clear()
    return found


def run(stage: Driven, prompts: list[tuple[int, ...]], count: int = 30, **given: Any) -> None:
    for index, ids in enumerate(prompts):
        submit(stage, f"r{index}", ids, count, **given)
    stage.run()
    stage.discard()
    stage.assert_empty()


def submit(stage: Driven, uid: str, ids: tuple[int, ...], count: int, **given: Any) -> None:
    given.setdefault("params", ROWS)
    sampling = {"max_tokens": count, **given.pop("sampling", {})}
    stage.submit(uid, ids, sampling=sampling, edges=("frames",), **given)


def frames(uid: str) -> list[list[int]]:
    """What came at the request's edge, without positions that nothing was sampled from."""
    rows = [row.tolist() for step in SEEN["frames", uid].steps for row in step.side["frames"]]
    assert all(len(row) == FRAME for row in rows)
    return [row for row in rows if row[0] >= 0]


def test_alone(stage: Driven, oracle: Reference) -> None:
    run(stage, IDS[2:3])
    assert frames("r0") == oracle.frames(IDS[2], ROWS, 30)
    assert stage.tokens("r0") == [frame[0] for frame in frames("r0")]


def test_in_a_batch(stage: Driven, oracle: Reference) -> None:
    """Mixed lengths; in the cramped stages prompts in pieces, and preemption."""
    run(stage, IDS)
    for index, ids in enumerate(IDS):
        assert frames(f"r{index}") == oracle.frames(ids, ROWS, 30)


def test_a_wrong_row_is_seen(talker_roomy: Driven, oracle: Reference) -> None:
    """Negative control."""
    assert oracle.frames(IDS[1], ROWS, 12) != oracle.frames(IDS[1], ROWS, 12, shift=1)
    no_rows: Mapping[str, Scalar] = {"rows": 0}
    assert oracle.frames(IDS[1], ROWS, 12) != oracle.frames(IDS[1], no_rows, 12)


def test_without_rows(stage: Driven, oracle: Reference) -> None:
    """Frames alone are the inputs then."""
    run(stage, IDS[:2], params={})
    for index, ids in enumerate(IDS[:2]):
        assert frames(f"r{index}") == oracle.frames(ids, {}, 30)


def test_preemption_happened(talker_cramped: Driven, oracle: Reference) -> None:
    """What the other tests of the cramped stage are for."""
    talker_cramped.clear()
    for index, ids in enumerate(IDS):
        submit(talker_cramped, f"r{index}", ids, 30)
    requests = dict(talker_cramped.scheduler.requests)
    talker_cramped.run()
    talker_cramped.discard()
    assert sum(request.num_preemptions for request in requests.values()) > 0


def test_lots_are_the_requests_own(stage: Driven) -> None:
    """Sampled frames with a seed: alone, in a batch, in pieces and after preemption the same."""
    sampling = {"temperature": 1.0, "seed": 11}
    run(stage, IDS[3:4], sampling=sampling)
    alone = frames("r0")
    run(stage, IDS, sampling=sampling)
    assert frames("r3") == alone
    run(stage, IDS[3:4], sampling={**sampling, "seed": 12})
    assert frames("r0") != alone


def test_the_lots_of_seeds_agree_between_stages(
    talker_roomy: Driven, talker_cramped_overlapped: Driven
) -> None:
    made = []
    for stage in (talker_roomy, talker_cramped_overlapped):
        stage.clear()
        run(stage, IDS, sampling={"temperature": 1.0, "seed": 3})
        made.append([frames(f"r{index}") for index in range(len(IDS))])
    assert made[0] == made[1]


def test_codes_can_be_the_most_likely_ones_of_a_sampled_token(talker_roomy: Driven) -> None:
    talker_roomy.clear()
    run(talker_roomy, IDS[1:2], sampling={"temperature": 1.0, "seed": 4, "code_temperature": 0.0})
    greedy = frames("r0")
    run(talker_roomy, IDS[1:2], sampling={"temperature": 1.0, "seed": 4})
    sampled = frames("r0")
    assert greedy[0][0] == sampled[0][0]  # the same token of the same seed
    assert greedy != sampled


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"params": {**ROWS, "short": True}}, "rows of shape"),
        ({"sampling": {"extra_args": {"code_top_p": 2}}}, "code_top_p is 2"),
        ({"sampling": {"extra_args": {"code_top_k": float("inf")}}}, "code_top_k is inf"),
        ({"sampling": {"extra_args": {"code_top_k": 1e300}}}, "code_top_k is 1e+300"),
        ({"sampling": {"code_top_k": -1}}, "code_top_k is -1"),
        ({"sampling": {"extra_args": {"code_temperature": "hot"}}}, "code_temperature is 'hot'"),
    ],
)
def test_a_bad_request_ends_alone(
    talker_roomy: Driven, oracle: Reference, given: dict[str, Any], message: str
) -> None:
    talker_roomy.clear()
    submit(talker_roomy, "bad", IDS[1], 12, **given)
    submit(talker_roomy, "good", IDS[2], 12)
    talker_roomy.run()
    (end,) = talker_roomy.endings("bad")
    assert end.error is not None
    assert message in end.error.message
    assert frames("good") == oracle.frames(IDS[2], ROWS, 12)
    talker_roomy.discard()
    talker_roomy.assert_empty()


@pytest.mark.parametrize(
    ("mistake", "message"), [(CLUMSY, "cannot be embedded"), (SHORT, "gave [16, 64] for 17 rows")]
)
def test_a_prompt_that_cannot_be_embedded_ends_alone(
    talker_roomy: Driven, oracle: Reference, mistake: int, message: str
) -> None:
    talker_roomy.clear()
    submit(talker_roomy, "bad", (*IDS[1][:-1], mistake), 12)
    submit(talker_roomy, "good", IDS[2], 12)
    talker_roomy.run()
    (end,) = talker_roomy.endings("bad")
    assert end.error is not None
    assert message in end.error.message
    assert frames("good") == oracle.frames(IDS[2], ROWS, 12)
    talker_roomy.discard()
    talker_roomy.assert_empty()


def test_aborts_give_slots_back(talker_roomy: Driven, oracle: Reference) -> None:
    talker_roomy.clear()
    for round_ in range(3):
        for index, ids in enumerate(IDS):
            submit(talker_roomy, f"a{round_}{index}", ids, 40)
        for _ in range(4 + round_):
            talker_roomy.host.step()
        talker_roomy.abort(*(f"a{round_}{index}" for index in range(len(IDS))))
    talker_roomy.discard()
    talker_roomy.assert_empty()
    run(talker_roomy, IDS[:1])
    assert frames("r0") == oracle.frames(IDS[0], ROWS, 30)


def test_a_slot_that_outlives_its_request_is_seen(
    engines: EnginePool, model_talker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: what the other tests' `assert_empty` is worth."""
    stage = engines.stage(talker_spec("leaking", model_talker))
    monkeypatch.setattr(Frames, "drop", lambda self, uid: None)
    submit(stage, "r", IDS[0], 3)
    with pytest.raises(AssertionError, match="frames are kept for other requests"):
        stage.run()
    monkeypatch.undo()
    checked.let_be(stage.host)


def test_ids_of_a_prompt_adapter_know_no_vocabulary(talker_roomy: Driven) -> None:
    assert min(IDS[0]) > VOCAB  # so the tests above show it
    talker_roomy.clear()
    talker_roomy.submit("empty")
    talker_roomy.run()
    (end,) = talker_roomy.endings("empty")
    assert end.error is not None
    assert "prompt is empty" in end.error.message
