"""A pipeline falls asleep with requests in flight between its stages (C55, C123)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.core.budget import EdgeLimits
from antiphon.core.options import InEdge, OutEdge
from antiphon.stage.messages import Abort, Acknowledged, Sleep, Wake
from antiphon.stage.spec import StageSpec
from engine_pool import EnginePool
from tiny import Driven, tiny_spec
from tiny_specs import CRAMPED
from tiny_streams import MADE, Chain

PROMPT = [5, 17, 80, 3, 44, 91, 12]
ROWS = 4  # of the consumer's prompt
TOKENS = 12  # of both
Action = Literal["step", "talk", "producer sleeps", "consumer sleeps", "producer wakes"]
Actions = list[Action | Literal["consumer wakes"]]


def dozing(spec: StageSpec) -> StageSpec:
    """With memory that is really given back."""
    args = spec.engine_args | {"worker_cls": "sleeping_worker.SleepingWorker"}
    return msgspec.structs.replace(spec, engine_args=args)


@pytest.fixture(scope="module")
def stages(engines: EnginePool, model_a: str, model_b: str) -> tuple[Driven, Driven]:
    limits = EdgeLimits(request_chunks=2)
    out = OutEdge("tight", "tiny_streams:RowChunksOut", stream=True, limits=limits)
    into = InEdge("tight", "tiny_streams:RowStreamIn", stream=True)
    producer = tiny_spec("dozing-producer", model_a, "dozing", outputs=(out,), **CRAMPED)
    consumer = tiny_spec(
        "dozing-consumer", model_b, "dozing", inputs=(into,), enable_prompt_embeds=True, **CRAMPED
    )
    return engines.stage(dozing(producer)), engines.stage(dozing(consumer))


@pytest.fixture(scope="module")
def wanted(stages: tuple[Driven, Driven]) -> dict[str, list[int]]:
    """What the consumer says if nobody sleeps: test_stage_streams shows that it is right."""
    chain = fresh(stages)
    uids = [start(chain, index) for index in range(3)]
    chain.run()
    return {uid: chain.consumer.tokens(f"{uid}'") for uid in uids}


@pytest.fixture
def chain(stages: tuple[Driven, Driven]) -> Iterator[Chain]:
    yield fresh(stages)
    for stage in stages:
        stage.host.handle(Wake(None, 0))
        stage.assert_empty()


def fresh(stages: tuple[Driven, Driven]) -> Chain:
    for stage in stages:
        stage.clear()
    return Chain(*stages)


def start(chain: Chain, index: int) -> str:
    uid = f"r{index}"
    sampling = {"max_tokens": TOKENS}
    prompt = [1 + (token + 7 * index) % 100 for token in PROMPT]
    chain.producer.submit(
        uid, prompt, edges=("tight",), params={"chunk": 2 + index}, sampling=sampling
    )
    chain.consumer.submit(f"{uid}'", waits_for="tight", params={"prompt": ROWS}, sampling=sampling)
    return uid


def check(chain: Chain, wanted: dict[str, list[int]]) -> None:
    for uid, tokens in wanted.items():
        assert len(MADE[uid]) == len(PROMPT) + TOKENS - 1
        assert chain.consumer.tokens(f"{uid}'") == tokens


def acknowledged(stage: Driven) -> dict[int, Any]:
    """Errors of what has been answered, by token."""
    return {e.token: e.error for e in stage.events if isinstance(e, Acknowledged)}


def step(chain: Chain) -> None:
    for stage in (chain.producer, chain.consumer):
        if stage.host.has_work:
            stage.host.step()


@pytest.mark.parametrize("first", ["producer", "consumer"])
@pytest.mark.parametrize("steps", [0, 4, 12])
def test_a_pipeline_falls_asleep_whoever_is_first(
    chain: Chain, wanted: dict[str, list[int]], first: str, steps: int
) -> None:
    """C55: neither waits for the other, though one lacks chunks and the other room; what is new
    meanwhile waits; both go on as if nothing had been.
    """
    for index in range(2):
        start(chain, index)
    for _ in range(steps):
        chain.forward()
        step(chain)
    order = [chain.producer, chain.consumer]
    for stage in order if first == "producer" else order[::-1]:
        stage.host.handle(Sleep(2, 1))
        chain.run()
        assert acknowledged(stage) == {1: None}
    start(chain, 2)
    said = len(chain.consumer.events)
    chain.run()
    assert len(chain.consumer.events) == said
    for stage in order:
        assert not stage.scheduler.running
        stage.host.handle(Wake(None, 2))
    chain.run()
    check(chain, wanted)


def test_what_was_sent_to_an_aborted_request_is_freed_while_the_stage_sleeps(chain: Chain) -> None:
    """C82: nobody has to wake for it."""
    start(chain, 0)
    for _ in range(3):
        chain.producer.host.step()
    chain.consumer.host.handle(Sleep(1, 1))
    chain.forward()
    assert chain.producer.inspect().connector_entries > 0
    chain.consumer.abort("r0'")
    chain.consumer.run()
    chain.forward()
    assert chain.producer.inspect().edges["tight"].chunks == 0
    chain.producer.abort("r0")
    assert chain.producer.inspect().connector_entries == 0


def test_a_deadline_ends_a_request_in_a_pipeline_that_sleeps(chain: Chain) -> None:
    """C55: as the orchestrator carries it out. One had begun, the other waits to begin."""
    start(chain, 0)
    for _ in range(6):
        chain.forward()
        step(chain)
    for stage in (chain.producer, chain.consumer):
        stage.host.handle(Sleep(1, 1))
    chain.run()
    start(chain, 1)
    for uid in ("r0", "r1"):
        chain.producer.abort(uid)
        chain.consumer.abort(f"{uid}'")
    chain.run()
    for stage in (chain.producer, chain.consumer):
        assert not stage.scheduler.requests
        assert stage.inspect().connector_entries == 0


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    actions=st.lists(
        st.sampled_from(
            [
                "step",
                "step",
                "talk",
                "producer sleeps",
                "consumer sleeps",
                "producer wakes",
                "consumer wakes",
            ]
        ),
        max_size=16,
    ),
    levels=st.lists(st.integers(1, 2), min_size=16, max_size=16),
    last=st.booleans(),
)
def test_any_order_of_sleep_and_wake(
    stages: tuple[Driven, Driven],
    wanted: dict[str, list[int]],
    actions: Actions,
    levels: list[int],
    last: bool,
) -> None:
    """C55, C123: every command is answered once, a pipeline that is told to sleep does, and what it
    computes is what it would have computed.
    """
    chain = fresh(stages)
    for index in range(2):
        start(chain, index)
    asked: dict[str, int] = {"producer": 0, "consumer": 0}
    for action, level in zip(actions, levels, strict=False):
        who, _, what = action.partition(" ")
        if action == "step":
            step(chain)
        elif action == "talk":
            chain.forward()
        else:
            asked[who] += 1
            command = Sleep(level, asked[who]) if what == "sleeps" else Wake(None, asked[who])
            getattr(chain, who).host.handle(command)
    start(chain, 2)
    order = ["producer", "consumer"] if last else ["consumer", "producer"]
    for who in order:
        asked[who] += 1
        getattr(chain, who).host.handle(Sleep(1, asked[who]))
    chain.run()
    for who, count in asked.items():
        stage: Driven = getattr(chain, who)
        answers = [e.token for e in stage.events if isinstance(e, Acknowledged)]
        assert sorted(answers) == list(range(1, count + 1))
        assert acknowledged(stage)[count] is None
        assert stage.inspect().free_blocks == stage.inspect().total_blocks - 1
    for stage in stages:
        stage.host.handle(Wake(None, 99))
    chain.run()
    check(chain, wanted)
    for stage in stages:
        stage.assert_empty()


def test_an_abort_is_answered_by_a_stage_that_is_about_to_sleep(chain: Chain) -> None:
    """C66: also for one that is held, and one that waits for what the other stage has held back."""
    start(chain, 0)
    for _ in range(4):
        chain.forward()
        step(chain)
    chain.consumer.host.handle(Sleep(1, 1))
    start(chain, 1)
    chain.consumer.host.handle(Abort(["r0'", "r1'"], 7))
    chain.consumer.run()
    assert acknowledged(chain.consumer) == {1: None}
    assert not chain.consumer.scheduler.requests
    chain.producer.abort("r0", "r1")
