"""A run as text and as a result file, both in the layout of `vllm bench serve`.

The keys of the file are vLLM's where vLLM has the thing; `disconnected`, `failures`, everything
about sound, and what the numbers were measured on are ours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from antiphon.bench.frame import machine, versions
from antiphon.bench.serve_call import Call
from antiphon.bench.serve_load import Load, Run
from antiphon.bench.serve_measures import Section, Statistics, Summary, limit_ms
from antiphon.errors import OutputPathError

WIDTH = 50


def report(summary: Summary, load: Load) -> str:
    """The text, without a line break at its end."""
    return "\n".join(_lines(summary, load))


def result(summary: Summary, run: Run, load: Load, call: Call, *, detailed: bool) -> dict[str, Any]:
    """The content of a result file; `detailed` adds what there is of each answer."""
    found: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": f"openai-{call.endpoint}",
        "backend": f"openai-{call.endpoint}",
        "label": None,
        "model_id": call.model,
        "tokenizer_id": None,
        "num_prompts": len(run.answers),
        "request_rate": "inf" if math.isinf(load.request_rate) else load.request_rate,
        "burstiness": "inf" if math.isinf(load.burstiness) else load.burstiness,
        "max_concurrency": load.max_concurrency,
        "disconnect_rate": load.disconnect_rate,
        "seed": load.seed,
        "duration": summary.duration_s,
        "completed": summary.completed,
        "failed": summary.failed,
        "disconnected": summary.disconnected,
        "total_input_tokens": summary.input_tokens,
        "total_output_tokens": summary.output_tokens,
        "request_throughput": summary.request_throughput,
        "request_goodput": summary.request_goodput,
        "output_throughput": summary.output_throughput,
        "total_token_throughput": summary.total_throughput,
        "max_output_tokens_per_s": summary.peak_output_throughput,
        "max_concurrent_requests": summary.peak_concurrent,
        "total_audio_s": summary.audio_s,
        "audio_throughput": summary.audio_throughput,
        "continuous_rate": summary.continuous_rate,
        "gaps": summary.gaps,
        "failures": dict(summary.failures),
    }
    for one in summary.statistics:
        found |= _statistics(one)
    if detailed:
        found |= _details(run)
    return found | {"machine": machine(), "versions": versions()}


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a result file. Raises OutputPathError if that is not possible."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    except OSError as error:
        raise OutputPathError(f"cannot write {path}: {error.strerror}") from error


# --- text -----------------------------------------------------------------------------------------


def _lines(summary: Summary, load: Load) -> Iterator[str]:
    yield _rule(" Serving Benchmark Result ", "=")
    yield _row("Successful requests:", summary.completed)
    yield _row("Failed requests:", summary.failed)
    if load.disconnect_rate:
        yield _row("Disconnected requests:", summary.disconnected)
    if load.max_concurrency is not None:
        yield _row("Maximum request concurrency:", load.max_concurrency)
    if not math.isinf(load.request_rate):
        yield _row("Request rate configured (RPS):", load.request_rate)
    yield _row("Benchmark duration (s):", summary.duration_s)
    yield _row("Total input tokens:", summary.input_tokens)
    yield _row("Total generated tokens:", summary.output_tokens)
    yield _row("Request throughput (req/s):", summary.request_throughput)
    if summary.request_goodput is not None:
        yield _row("Request goodput (req/s):", summary.request_goodput)
    yield _row("Peak concurrent requests:", summary.peak_concurrent)
    yield from _measures(summary, Section.ALL)
    if summary.output_tokens:
        yield _rule(Section.TEXT, "=")
        yield _row("Output token throughput (tok/s):", summary.output_throughput)
        yield _row("Peak output token throughput (tok/s):", summary.peak_output_throughput)
        yield _row("Total token throughput (tok/s):", summary.total_throughput)
        yield from _measures(summary, Section.TEXT)
    if summary.continuous_rate is not None:
        yield _rule(Section.AUDIO, "=")
        yield _row("Total audio (s):", summary.audio_s)
        yield _row("Audio throughput (audio s/s):", summary.audio_throughput)
        yield _row("Continuous answers (%):", 100 * summary.continuous_rate)
        yield _row(f"Underruns over {limit_ms():g} ms:", summary.gaps)
        yield from _measures(summary, Section.AUDIO)
    if summary.failures:
        yield _rule(" Failures ", "=")
        for error, count in summary.failures:
            yield f"{count:>6} {error}"
    yield "=" * WIDTH


def _measures(summary: Summary, section: Section) -> Iterator[str]:
    for one in summary.statistics:
        if one.measure.section is section:
            yield _rule(one.measure.title, "-")
            label = one.measure.label
            yield _row(f"Mean {label}:", one.mean)
            yield _row(f"Median {label}:", one.median)
            for p, value in one.percentiles:
                yield _row(f"P{p:g} {label}:", value)


def _rule(title: str, line: str) -> str:
    return f"{title:{line}^{WIDTH}}"


def _row(name: str, value: float) -> str:
    return f"{name:<40} {value:<10}" if isinstance(value, int) else f"{name:<40} {value:<10.2f}"


# --- file -----------------------------------------------------------------------------------------


def _statistics(one: Statistics) -> dict[str, float]:
    suffix = one.measure.suffix
    found = {f"mean_{suffix}": one.mean, f"median_{suffix}": one.median, f"std_{suffix}": one.std}
    return found | {f"p{p:g}_{suffix}": value for p, value in one.percentiles}


def _details(run: Run) -> dict[str, Any]:
    """A list each, of all answers in order; where there is no such time it is null."""
    answers = run.answers
    return {
        "input_lens": [answer.prompt_tokens for answer in answers],
        "output_lens": [answer.output_tokens for answer in answers],
        "ttfts": [answer.ttft_s for answer in answers],
        "itls": [answer.itl_s for answer in answers],
        "latencies": [answer.latency_s for answer in answers],
        "start_times": [answer.start_s for answer in answers],
        "queue_times": [answer.queue_s for answer in answers],
        "generated_texts": [answer.text for answer in answers],
        "errors": [answer.error for answer in answers],
        "endings": [answer.ending for answer in answers],
        "ttfas": [answer.ttfa_s for answer in answers],
        "audio_s": [answer.audio_s for answer in answers],
        "rtfs": [answer.rtf for answer in answers],
        "underruns": [
            None if answer.continuity is None else answer.continuity.worst_underrun_s
            for answer in answers
        ],
    }
