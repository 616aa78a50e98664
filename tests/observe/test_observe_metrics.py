"""Metrics of requests out of their records."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from antiphon.observe import table
from antiphon.observe.exposition import Exposition, families_of
from antiphon.observe.families import Family, Sample
from antiphon.observe.metrics import Metrics
from antiphon.observe.record import Timeline
from antiphon.observe.table import PREFIX, TABLE, Kind, Metric, Source
from exposed import Exposed, as_text
from records import VOICE, timelines


def exposed(*records: Timeline) -> Exposed:
    metrics = Metrics("voice")
    for record in records:
        metrics.began(record.id, ())
        metrics.ended(record)
    return Exposed(as_text(metrics.families()))


def like(record: Timeline, **changes: Any) -> Timeline:
    return msgspec.structs.replace(record, **changes)


def test_a_spoken_answer() -> None:
    found = exposed(VOICE)
    chat = {"model_name": "voice", "entry": "chat"}
    for name, value in (
        ("prompt_tokens_total", 16),
        ("output_tokens_total", 40),
        ("time_to_first_token_seconds_sum", 0.125),
        ("time_to_first_audio_seconds_sum", 0.75),
        ("inter_token_latency_seconds_count", 39),
        ("inter_token_latency_seconds_sum", 39 / 64),
        ("request_time_per_output_token_seconds_sum", 1 / 64),
        ("e2e_request_latency_seconds_sum", 2.0),
        ("real_time_factor_sum", 0.5),
        ("audio_seconds_total", 3.0),
        ("audio_chunk_gap_seconds_count", 2),
        ("audio_chunk_gap_seconds_sum", 0.75),
        ("audio_underrun_seconds_count", 1),
        ("audio_underrun_seconds_sum", 0.0),
        ("audio_continuity_ok_total", 1),
    ):
        assert found.value(PREFIX + name, **chat) == pytest.approx(value), name
    assert found.value("antiphon:requests_total", outcome="stop", **chat) == 1


def test_parts_at_stages_and_on_edges() -> None:
    found = exposed(VOICE)
    talker = {"stage": "talker", "replica": "0"}
    assert found.value("antiphon:stage_queue_seconds_sum", **talker) == 0.25
    assert found.value("antiphon:stage_run_seconds_sum", **talker) == 1.0
    assert found.value("antiphon:stage_tokens_total", **talker) == 120
    codes = {"edge": "codes"}
    assert found.value("antiphon:edge_chunks_total", **codes) == 6
    assert found.value("antiphon:edge_bytes_total", **codes) == 9216
    assert found.value("antiphon:edge_first_chunk_seconds_sum", **codes) == 0.625
    assert found.value("antiphon:edge_transfer_seconds_sum", **codes) == 0.125
    assert found.find("antiphon:kv_handoff_seconds_count", **codes) == []


def test_a_cache_that_was_handed_over() -> None:
    (speech, codes) = VOICE.edges
    found = exposed(like(VOICE, edges=(msgspec.structs.replace(speech, cache=True), codes)))
    assert found.value("antiphon:kv_handoff_seconds_sum", edge="speech") == 0.25


def test_an_error_is_counted_by_code_and_measured_by_nothing() -> None:
    found = exposed(like(VOICE, outcome="error", cause="stage_died"))
    assert found.value("antiphon:request_failures_total", code="stage_died") == 1
    assert found.value("antiphon:requests_total", outcome="error") == 1
    for name in ("e2e_request_latency_seconds_count", "real_time_factor_count", "timeouts_total"):
        assert found.find(PREFIX + name) == [], name
    # What it came to has been seen by somebody.
    assert found.value("antiphon:time_to_first_token_seconds_count") == 1


@pytest.mark.parametrize("code", ["deadline_exceeded", "stage_input_timeout"])
def test_time_that_ran_out(code: str) -> None:
    found = exposed(like(VOICE, outcome="error", cause=code))
    assert found.value("antiphon:timeouts_total", reason=code) == 1
    assert found.value("antiphon:request_failures_total", code=code) == 1


def test_an_abort_is_counted_by_who_wanted_it() -> None:
    found = exposed(
        like(VOICE, outcome="abort", cause="disconnect"), like(VOICE, outcome="abort", cause=None)
    )
    assert found.value("antiphon:aborts_total", cause="disconnect") == 1
    assert found.value("antiphon:aborts_total", cause="unknown") == 1
    assert found.find("antiphon:e2e_request_latency_seconds_count") == []


def test_a_request_without_sound_is_in_no_family_of_sound() -> None:
    found = exposed(like(VOICE, playback=None, ttfa_s=None, rtf=None, audio_s=()))
    assert found.find("antiphon:audio_underrun_seconds_count") == []
    assert found.find("antiphon:audio_continuity_ok_total") == []
    assert found.find("antiphon:real_time_factor_count", entry="chat") == [0]
    assert found.value("antiphon:e2e_request_latency_seconds_count") == 1


def test_speech_that_breaks_up_is_not_continuous() -> None:
    assert VOICE.playback is not None
    broken = msgspec.structs.replace(
        VOICE.playback, total_underrun_s=0.75, worst_underrun_s=0.5, gaps=2, continuous=False
    )
    found = exposed(like(VOICE, playback=broken), VOICE)
    assert found.value("antiphon:audio_continuity_ok_total") == 1
    assert found.value("antiphon:audio_underrun_seconds_sum") == 0.75
    assert found.value("antiphon:audio_underrun_seconds_bucket", le="0.5") == 1


def test_what_arrives_at_once_is_one_arrival() -> None:
    found = exposed(like(VOICE, text_s=((0.5, 1), (0.75, 3), (1.0, 2))))
    assert found.value("antiphon:inter_token_latency_seconds_count") == 2
    assert found.value("antiphon:request_time_per_output_token_seconds_sum") == 0.5 / 5


def test_running_and_waiting() -> None:
    metrics = Metrics("voice")

    def now() -> tuple[float, float]:
        found = Exposed(as_text(metrics.families()))
        running = found.value("antiphon:requests_running", model_name="voice")
        return running, found.value("antiphon:requests_waiting", model_name="voice")

    metrics.began("a", ("thinker",))
    metrics.began("b", ("thinker",))
    metrics.first_output("a")
    assert now() == (2, 1)
    metrics.ended(like(VOICE, id="a"))
    metrics.ended(like(VOICE, id="b", outcome="error", cause="stage"))
    assert now() == (0, 0)


def test_refused() -> None:
    metrics = Metrics("voice")
    metrics.refused("overloaded")
    found = Exposed(as_text(metrics.families()))
    assert found.value("antiphon:admission_rejections_total", reason="overloaded") == 1


@settings(deadline=None)
@given(timelines())
def test_any_record_can_be_counted(record: Timeline) -> None:
    found = exposed(record)
    found.check()
    assert found.value("antiphon:requests_total") == 1
    assert found.value("antiphon:requests_running") == 0
    assert all(value >= 0 for name, _, value in found.series if name.endswith("_sum"))


# --- the table ------------------------------------------------------------------------------------


def test_names_follow_the_conventions_of_prometheus() -> None:
    names = [metric.name for metric in TABLE]
    assert len(names) == len(set(names))
    for metric in TABLE:
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name
        assert metric.help.endswith("."), metric.name
        assert not metric.full_name.startswith("vllm")


def test_the_registry_has_what_the_table_says() -> None:
    """Of what is kept; the rest is put together for each scrape."""
    kept = {m for m in TABLE if m.source in (Source.REQUESTS, Source.STAGES)} | {table.UNANSWERED}
    families = {family.name: family for family in Metrics("voice").families()}
    assert families.keys() == {m.full_name.removesuffix("_total") for m in kept}
    for metric in kept:
        family = families[metric.full_name.removesuffix("_total")]
        assert (family.kind, family.help) == (metric.kind, metric.help)


def test_two_observers_of_one_process_keep_apart() -> None:
    first, second = Metrics("voice"), Metrics("voice")
    first.refused("overloaded")
    assert Exposed(as_text(second.families())).find("antiphon:admission_rejections_total") == []


# --- expositions ----------------------------------------------------------------------------------


def test_families_of_one_name_stand_together() -> None:
    def of(stage: str, value: float) -> tuple[list[Family], dict[str, str]]:
        samples = [Sample("vllm:x", {"engine": "0"}, value)]
        return [Family("vllm:x", "help", "gauge", samples)], {"stage": stage}

    exposition = Exposition()
    exposition.add(*of("thinker", 1.0))
    exposition.add(*of("talker", 2.0))
    (metric,) = exposition.collect()
    assert [(s.labels["stage"], s.value) for s in metric.samples] == [
        ("thinker", 1.0),
        ("talker", 2.0),
    ]


def test_a_label_that_is_there_already_is_kept_under_another_name() -> None:
    """vLLM's own `stage` is one of loading a cache."""
    exposition = Exposition()
    samples = [Sample("vllm:x", {"stage": "in_progress"}, 1.0)]
    exposition.add([Family("vllm:x", "help", "gauge", samples)], {"stage": "decode"})
    (metric,) = exposition.collect()
    assert metric.samples[0].labels == {"stage": "decode", "exported_stage": "in_progress"}


def test_the_moments_of_creation_are_left_out() -> None:
    from prometheus_client import CollectorRegistry, Counter

    registry = CollectorRegistry()
    Counter("x", "help", registry=registry).inc()
    (family,) = families_of(registry)
    assert [sample.name for sample in family.samples] == ["x_total"]


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        (table.TTFT, "seconds"),
        (table.EDGE_BLOCKED_S, "seconds"),
        (table.EDGE_BYTES, "bytes"),
        (table.EDGE_DEPTH, "chunks"),
        (table.RTF, ""),
    ],
)
def test_units_are_told_by_names(metric: Metric, unit: str) -> None:
    assert metric.unit == unit
