"""Hidden rows at a request's edge are the model's own, each position once, whatever scheduling did.

Compared with transformers in fp32. The tolerance is that of summing in another order: attention and
matrix products run over other shapes when positions are batched, chunked or replayed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from tiny import Driven, reference, reference_rows
from tiny_adapters import SEEN

TOLERANCE = 1e-4
PROMPTS = [[(5 * i + 11 * j) % 100 + 1 for j in range(3 + 13 * i)] for i in range(6)]
STAGES = ["roomy", "cramped", "overlapped", "cramped_overlapped"]


@pytest.fixture(scope="module")
def model(model_a: str) -> LlamaForCausalLM:
    return reference(model_a)


@pytest.fixture(params=STAGES)
def stage(request: pytest.FixtureRequest) -> Driven:
    found: Driven = request.getfixturevalue(request.param)
    found.clear()
    return found


def run(stage: Driven, prompts: list[list[int]], max_tokens: int = 50, **given: Any) -> None:
    given.setdefault("edges", ("rows",))
    for index, prompt in enumerate(prompts):
        stage.submit(f"r{index}", prompt, sampling={"max_tokens": max_tokens}, **given)
    stage.run()
    stage.discard()
    stage.assert_empty()


def check(stage: Driven, model: LlamaForCausalLM, uid: str, prompt: list[int]) -> None:
    """Every row of the request is transformers' row of that position; the last token has none."""
    tokens = prompt + stage.tokens(uid)
    given = SEEN["rows", uid]
    assert given.positions == list(range(len(tokens) - 1))
    assert given.ends == 1
    expected = reference_rows(model, tokens)[:-1]
    assert float((given.rows - expected).abs().max()) < TOLERANCE


def test_alone(stage: Driven, model: LlamaForCausalLM) -> None:
    """C91."""
    run(stage, PROMPTS[2:3])
    check(stage, model, "r0", PROMPTS[2])


def test_in_a_batch(stage: Driven, model: LlamaForCausalLM) -> None:
    """C91, C92: mixed lengths, and in the cramped stages prompts in pieces and preemption."""
    run(stage, PROMPTS)
    for index, prompt in enumerate(PROMPTS):
        check(stage, model, f"r{index}", prompt)


def test_one_token_after_a_prompt_of_one(stage: Driven, model: LlamaForCausalLM) -> None:
    run(stage, [[9]], max_tokens=1)
    check(stage, model, "r0", [9])


@pytest.mark.parametrize("length", [48, 49, 96, 97])
def test_the_last_piece_of_a_prompt(cramped: Driven, model: LlamaForCausalLM, length: int) -> None:
    """C38: the budget is 48 tokens, so a prompt of 49 ends with a piece of one."""
    cramped.clear()
    prompt = [(3 * j) % 90 + 1 for j in range(length)]
    run(cramped, [prompt], max_tokens=3)
    check(cramped, model, "r0", prompt)


def test_the_cramped_stage_preempts(cramped: Driven) -> None:
    """Without this the tests above would show nothing about preemption."""
    cramped.clear()
    for index, prompt in enumerate(PROMPTS):
        cramped.submit(f"r{index}", prompt, sampling={"max_tokens": 50}, edges=("rows",))
    scheduler = cramped.scheduler
    preempted = set()
    while cramped.host.has_work:
        cramped.host.step()
        preempted |= {uid for uid, r in scheduler.requests.items() if r.num_preemptions}
    cramped.discard()
    assert preempted


def test_rows_of_a_stop_token(stage: Driven, model: LlamaForCausalLM) -> None:
    """C68: a stop ends the rows where the tokens end, also with a step in flight."""
    run(stage, PROMPTS[1:2], max_tokens=20)
    token = stage.tokens("r0")[7]
    stage.clear()
    SEEN.clear()
    sampling = {"max_tokens": 20, "stop_token_ids": [token]}
    stage.submit("r0", PROMPTS[1], sampling=sampling, edges=("rows",))
    stage.run()
    stage.discard()
    check(stage, model, "r0", PROMPTS[1])


def test_asynchronous_rows_are_the_synchronous_ones(roomy: Driven, overlapped: Driven) -> None:
    """C105: looking ahead exchanges no step's rows for the next one's, to the bit."""
    found = []
    for stage in (roomy, overlapped):
        stage.clear()
        SEEN.clear()
        run(stage, PROMPTS, edges=("rows", "ids"))
        found.append(
            {
                key: (given.tokens, given.rows if key[0] == "rows" else None)
                for key, given in SEEN.items()
            }
        )
    assert found[0].keys() == found[1].keys()
    for key, (tokens, rows) in found[0].items():
        assert found[1][key][0] == tokens
        if rows is not None:
            assert torch.equal(found[1][key][1], rows)


def test_another_prompts_rows_differ(roomy: Driven, model: LlamaForCausalLM) -> None:
    """The comparison is able to fail: one other token changes every later row visibly."""
    roomy.clear()
    prompt = PROMPTS[3]
    run(roomy, [prompt])
    other = [prompt[0] + 1, *prompt[1:]]
    expected = reference_rows(model, other + roomy.tokens("r0"))[:-1]
    distance = (SEEN["rows", "r0"].rows - expected).abs().amax(dim=1)
    assert float(distance.min()) > 100 * TOLERANCE


def test_tokens_reach_an_edge_once_and_in_order(stage: Driven) -> None:
    run(stage, PROMPTS, edges=("ids", "rows"))
    for index in range(len(PROMPTS)):
        assert SEEN["ids", f"r{index}"].tokens == stage.tokens(f"r{index}")
        assert SEEN["ids", f"r{index}"].ends == 1


def test_each_edge_announces_one_payload(stage: Driven) -> None:
    run(stage, PROMPTS[:3], edges=("rows", "ids"))
    seen = [(ref.uid, ref.edge, ref.seq, ref.end, ref.empty) for ref in stage.refs()]
    assert sorted(seen) == [
        (f"r{i}", edge, 0, True, False) for i in range(3) for edge in ("ids", "rows")
    ]


def test_nothing_to_send_is_an_explicit_empty_end(stage: Driven) -> None:
    """C115."""
    stage.submit("x", [1, 2], edges=("rows", "ids"), params={"silent": True})
    stage.run()
    assert [(r.edge, r.seq, r.end, r.empty) for r in stage.refs()] == [
        ("rows", 0, True, True),
        ("ids", 0, True, True),
    ]
    stage.assert_empty()
