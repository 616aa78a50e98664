"""Through our host, scheduler and worker an engine gives the tokens that stock vLLM gives."""

from __future__ import annotations

import time
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.executor.abstract import Executor

import tiny
import upstream_state
from tiny import Driven, engine_args
from tiny_adapters import CALLS, SEEN

PROMPTS = [[(7 * i + 3 * j) % 100 + 1 for j in range(5 + 9 * i)] for i in range(8)]


class Stock:
    """Upstream's engine with upstream's scheduler and worker."""

    def __init__(self, model: str) -> None:
        config = EngineArgs(model=model, **engine_args()).create_engine_config()
        self.client = InprocClient(config, Executor.get_class(config), log_stats=False)

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        for index, prompt in enumerate(prompts):
            sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
            self.client.add_request(
                EngineCoreRequest(
                    request_id=str(index),
                    prompt_token_ids=prompt,
                    mm_features=None,
                    sampling_params=sampling,
                    pooling_params=None,
                    arrival_time=time.time(),
                    lora_request=None,
                    cache_salt=None,
                    data_parallel_rank=None,
                    external_req_id=str(index),
                )
            )
        found: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
        while self.client.engine_core.scheduler.has_requests():
            for output in self.client.get_output().outputs:
                found[output.request_id] += output.new_token_ids
        return list(found.values())


@pytest.fixture(scope="module")
def stock(engines: Any, model_a: str) -> Stock:
    made = Stock(model_a)
    engines.keep(made.client.shutdown)
    return made


@pytest.fixture(scope="module")
def expected(stock: Stock) -> list[list[int]]:
    """Stock vLLM's answer to each prompt, alone."""
    return [stock.generate([prompt], 60)[0] for prompt in PROMPTS]


def generate(stage: Driven, prompts: list[list[int]], **given: Any) -> list[list[int]]:
    stage.clear()
    for index, prompt in enumerate(prompts):
        stage.submit(f"r{index}", prompt, sampling={"max_tokens": 60}, **given)
    stage.run()
    for index in range(len(prompts)):
        assert [end.finish for end in stage.endings(f"r{index}")] == ["length"]
    stage.discard()
    stage.assert_empty()
    return [stage.tokens(f"r{index}") for index in range(len(prompts))]


def test_alone(roomy: Driven, expected: list[list[int]]) -> None:
    assert [generate(roomy, [prompt])[0] for prompt in PROMPTS] == expected


def test_in_a_batch_of_eight(roomy: Driven, stock: Stock, expected: list[list[int]]) -> None:
    assert stock.generate(PROMPTS, 60) == expected
    assert generate(roomy, PROMPTS) == expected


def test_with_edges_that_want_rows_and_ids(roomy: Driven, expected: list[list[int]]) -> None:
    assert generate(roomy, PROMPTS, edges=("rows", "ids")) == expected


def test_chunked_and_preempted(cramped: Driven, expected: list[list[int]]) -> None:
    """C34, C38: a replay after preemption and a prompt in pieces change no token."""
    before = cramped.inspect().steps
    assert generate(cramped, PROMPTS) == expected
    assert cramped.inspect().steps - before > 60 + 8  # more steps than it takes without preemption


def test_asynchronous(overlapped: Driven, expected: list[list[int]]) -> None:
    assert generate(overlapped, PROMPTS) == expected


def test_asynchronous_chunked_and_preempted(
    cramped_overlapped: Driven, expected: list[list[int]]
) -> None:
    """C117: preemption with a step in flight."""
    assert generate(cramped_overlapped, PROMPTS) == expected


@pytest.mark.parametrize("name", ["roomy", "overlapped"])
def test_the_overlap_is_real(name: str, request: pytest.FixtureRequest) -> None:
    """The asynchronous stage schedules a step before it has the last one's tokens."""
    stage: Driven = request.getfixturevalue(name)
    stage.clear()
    stage.submit("x", [1, 2, 3])
    stage.host.step()
    assert len(stage.tokens("x")) == (0 if name == "overlapped" else 1)
    stage.run()
    stage.assert_empty()


def test_a_text_only_request_builds_no_payload(roomy: Driven) -> None:
    """C81: no adapter is opened, nothing is stored, no row is copied."""
    generate(roomy, PROMPTS[:2])
    assert not CALLS
    assert not SEEN
    assert roomy.refs() == []
    assert roomy.inspect().connector_entries == 0


@pytest.mark.parametrize("name", ["roomy", "overlapped"])
def test_an_edge_that_wants_no_step_costs_none(name: str, request: pytest.FixtureRequest) -> None:
    """C81: its adapter is opened and asked at the end; no step notes a token or copies a row."""
    stage: Driven = request.getfixturevalue(name)
    stage.clear()
    stage.submit("q", PROMPTS[0], edges=("quiet",))
    stage.run_until(lambda: bool(stage.tokens("q")))
    assert not stage.scheduler.coordinator.routed
    stage.run()
    assert CALLS == {"open": 1, "end": 1}
    assert [(ref.edge, ref.end) for ref in stage.refs()] == [("quiet", True)]
    stage.discard()
    stage.assert_empty()


def test_a_token_edge_costs_no_rows(roomy: Driven) -> None:
    """`requires_token_updates` alone: every id, and nothing of the hidden states."""
    roomy.clear()
    roomy.submit("t", PROMPTS[0], edges=("ids",))
    roomy.run_until(lambda: bool(roomy.tokens("t")))
    assert roomy.scheduler.coordinator.routed
    roomy.run()
    assert SEEN["ids", "t"].tokens == roomy.tokens("t")
    assert (SEEN["ids", "t"].steps, CALLS["rows"]) == ([], 0)
    roomy.discard()
    roomy.assert_empty()


def test_more_requests_than_places_wait_their_turn(roomy: Driven) -> None:
    """C116: 20 requests on 8 places all complete."""
    found = generate(roomy, [[1, 2, 3 + i] for i in range(20)])
    assert [len(tokens) for tokens in found] == [60] * 20


def test_a_stop_token_ends_with_its_id(roomy: Driven, expected: list[list[int]]) -> None:
    roomy.clear()
    token = expected[0][10]
    first = expected[0].index(token)
    roomy.submit("x", PROMPTS[0], sampling={"max_tokens": 60, "stop_token_ids": [token]})
    roomy.run()
    (end,) = roomy.endings("x")
    assert (end.finish, end.stop_reason) == ("stop", token)
    assert roomy.tokens("x") == expected[0][: first + 1]


def test_the_end_token_of_the_checkpoint_stops(roomy: Driven) -> None:
    """A bias that leaves only the end token: finish reason stop, without a stop token's id."""
    roomy.clear()
    sampling = {"ignore_eos": False, "logit_bias": {tiny.EOS: 100.0}}
    roomy.submit("x", [1, 2], sampling=sampling)
    roomy.run()
    (end,) = roomy.endings("x")
    assert (roomy.tokens("x"), end.finish, end.stop_reason) == ([tiny.EOS], "stop", None)


# --- the process afterwards -----------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def upstream_before() -> upstream_state.Snapshot:
    """Taken when everything is imported and before this module's first step."""
    return upstream_state.snapshot()


def test_nothing_of_upstream_was_modified(
    upstream_before: upstream_state.Snapshot, roomy: Driven, cramped_overlapped: Driven
) -> None:
    """AR-INV-004 in the running process, after engines of every kind have run."""
    for stage in (roomy, cramped_overlapped):
        generate(stage, PROMPTS[:2], edges=("rows", "ids"))
    assert upstream_state.foreign(upstream_before) == []
