"""What a stage reports of itself between two steps, and vLLM's own metrics of its engine."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import StageStepError
from antiphon.observe.families import Family
from antiphon.stage.messages import Measure, Measured, Sleep, Update, Used, Wake
from engine_pool import EnginePool
from tiny import Driven


def measure(stage: Driven) -> Measured:
    answer = stage.ask_first(Measure(7))
    assert isinstance(answer, Measured)
    return answer


def value(families: Iterable[Family], name: str, **labels: str) -> float:
    """The sum of the series with this sample name and these labels; there has to be one."""
    found = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and sample.labels.items() >= labels.items()
    ]
    assert found, f"{name} {labels} is not there"
    return sum(found)


class Before:
    """What the figures of a stage were, since its tests share it."""

    def __init__(self, stage: Driven) -> None:
        self._stage = stage
        self._then = measure(stage).engine

    def more(self, name: str, **labels: str) -> float:
        now = value(measure(self._stage).engine, name, **labels)
        return now - value(self._then, name, **labels)


@pytest.fixture(scope="session")
def measured(engines: EnginePool, model_a: str) -> Driven:
    """A stage that keeps vLLM's metrics; few blocks, so that a batch is preempted."""
    from tiny_specs import CRAMPED, few_edges

    spec = few_edges("measured", model_a, **CRAMPED)
    return engines.stage(msgspec.structs.replace(spec, metrics=True))


@pytest.fixture
def stage(measured: Driven) -> Driven:
    measured.clear()
    return measured


def test_vllms_families_move(stage: Driven) -> None:
    """C73: nothing that should count stays 0."""
    before = Before(stage)
    stage.submit("x", [1, 2, 3, 4, 5])
    stage.run()
    stage.assert_empty()
    for name, grown in (
        ("vllm:prompt_tokens_total", 5),
        ("vllm:generation_tokens_total", 8),
        ("vllm:time_to_first_token_seconds_count", 1),
        ("vllm:inter_token_latency_seconds_count", 7),
        ("vllm:e2e_request_latency_seconds_count", 1),
        ("vllm:request_prompt_tokens_sum", 5),
        ("vllm:request_generation_tokens_sum", 8),
        ("vllm:request_params_max_tokens_sum", 8),
        ("vllm:request_max_num_generation_tokens_sum", 8),
        ("vllm:iteration_tokens_total_sum", 13),
    ):
        assert before.more(name) == grown, name
    assert before.more("vllm:request_success_total", finished_reason="length") == 1
    for name in ("e2e_request_latency", "request_queue_time", "request_inference_time"):
        assert 0 < before.more(f"vllm:{name}_seconds_sum") < 60, name
    assert value(measure(stage).engine, "vllm:cache_config_info") == 1


def test_what_waits_and_what_is_used_is_seen_while_it_is(stage: Driven) -> None:
    for index in range(9):  # on eight places
        stage.submit(f"r{index}", [1, 2, 3], sampling={"max_tokens": 20})
    for _ in range(3):
        stage.host.step()
    families = measure(stage).engine
    assert value(families, "vllm:num_requests_running") >= 1
    assert value(families, "vllm:num_requests_waiting") >= 1
    assert value(families, "vllm:kv_cache_usage_perc") > 0
    stage.run()
    families = measure(stage).engine
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert value(families, f"vllm:{name}") == 0


def test_preemptions_are_counted(stage: Driven) -> None:
    before = Before(stage)
    for index in range(2):
        stage.submit(
            f"r{index}", [(3 * j) % 90 + 1 for j in range(70)], sampling={"max_tokens": 50}
        )
    stage.run()
    assert before.more("vllm:num_preemptions_total") > 0
    assert before.more("vllm:request_success_total") == 2


def test_an_abort_is_no_success_and_is_forgotten(stage: Driven) -> None:
    before = Before(stage)
    stage.submit("x", [1, 2, 3], sampling={"max_tokens": 50})
    for _ in range(3):
        stage.host.step()
    stage.abort("x")
    stage.run()
    assert before.more("vllm:request_success_total") == 0
    assert before.more("vllm:generation_tokens_total") > 0
    stage.assert_empty()


def test_a_wait_that_ends_in_an_error_spoils_no_time(stage: Driven) -> None:
    """It has never run: upstream's own differences would be of zeros and clock values."""
    before = Before(stage)
    stage.submit("x", waits_for="nowhere")
    stage.scheduler.fail_requests(["x"], StageStepError("why not"))
    stage.run()
    assert [end.finish for end in stage.endings("x")] == ["error"]
    for name in ("request_queue_time", "request_prefill_time", "e2e_request_latency"):
        assert before.more(f"vllm:{name}_seconds_count") == 0
        assert before.more(f"vllm:{name}_seconds_sum") == 0
    stage.assert_empty()


def test_each_segment_of_a_session_has_a_first_token(stage: Driven) -> None:
    before = Before(stage)
    stage.submit("s", [1, 2, 3], session=True, sampling={"max_tokens": 4})
    stage.run()
    stage.host.handle(Update("s", 1, UpdateKind.EXTEND, [4, 5]))
    stage.run()
    assert before.more("vllm:time_to_first_token_seconds_count") == 2
    assert before.more("vllm:inter_token_latency_seconds_count") == 6
    assert before.more("vllm:time_to_first_token_seconds_sum") < 60
    stage.abort("s")
    stage.assert_empty()


def test_sleep_is_seen(stage: Driven) -> None:
    stage.host.handle(Sleep(1, 1))
    families = measure(stage).engine
    assert value(families, "vllm:engine_sleep_state", sleep_state="awake") == 0
    assert value(families, "vllm:engine_sleep_state", sleep_state="weights_offloaded") == 1
    stage.host.handle(Wake(None, 2))
    assert value(measure(stage).engine, "vllm:engine_sleep_state", sleep_state="awake") == 1


def test_nothing_is_told_that_no_stage_feeds(stage: Driven) -> None:
    names = {family.name for family in measure(stage).engine}
    assert not names & {"vllm:mm_cache_queries", "vllm:mm_cache_hits", "vllm:admission_rejections"}


def test_edges_are_measured(stage: Driven) -> None:
    stage.submit("x", [1, 2, 3], edges=("rows",))
    stage.run()
    (ref,) = stage.refs()
    budget = measure(stage).edges["rows"]
    assert (budget.chunks, budget.bytes) == (1, ref.nbytes)
    assert (budget.capacity_chunks, budget.blocked_s) == (1024, 0.0)
    stage.host.handle(Used("rows", [ref.key]))
    assert measure(stage).edges["rows"].chunks == 0
    stage.discard()


def test_a_stage_answers_between_two_steps(stage: Driven) -> None:
    stage.submit("x", [1, 2, 3])
    steps = measure(stage).steps
    stage.host.step()
    assert measure(stage).steps == steps + 1  # while it works
    stage.run()


def test_a_stage_that_keeps_none_has_none(roomy: Driven) -> None:
    roomy.clear()
    roomy.submit("x", [1, 2, 3])
    roomy.run()
    answer = measure(roomy)
    assert answer.engine == []
    assert answer.steps > 0


def test_engines_of_one_process_keep_apart(
    stage: Driven, engines: EnginePool, model_b: str
) -> None:
    from tiny_specs import few_edges

    spec = msgspec.structs.replace(few_edges("second", model_b), metrics=True)
    second = engines.stage(spec)
    before = Before(stage)
    second.submit("x", [1, 2, 3])
    second.run()
    assert value(measure(second).engine, "vllm:generation_tokens_total") == 8
    assert before.more("vllm:generation_tokens_total") == 0
    stage.submit("y", [1, 2, 3])
    stage.run()
    assert before.more("vllm:generation_tokens_total") == 8
    assert value(measure(second).engine, "vllm:generation_tokens_total") == 8
