"""`antiphon bench model NAME`: a model's pipeline against transformers' own `generate`.

Both answer the same questions from the same tiny random checkpoint in float32, greedily, with as
many tokens of text and frames of sound. Ours runs as it is deployed, a process per stage with
stream edges, and is given the questions at once, each a request of its own; transformers gets them
as one batch. Rounds of both alternate; times are medians. transformers gives no sound before all is
done, so its time to the first sound is that of the whole call.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE_HEAD
from rich.table import Table

from antiphon.orchestrator.api import OmniRequest, Reply

TEXT_TOKENS = 16
FRAMES = 64
SPEAKER = "ethan"
STAGES = 3
SAME_AUDIO = 1e-3  # largest difference of two samples, -1 to 1, that still counts as the same
QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue in the morning and red in the evening?",
    "Name three colours.",
    "Tell me about the ocean.",
    "Who wrote Hamlet, and when?",
    "What is two plus two?",
    "Write a sentence about a cat that sleeps on a warm stone.",
    "What do bees make?",
)


@dataclass(frozen=True, slots=True)
class Generated:
    """One call of transformers. `sounds` float32 [samples], in the questions' order."""

    seconds: float
    sounds: list[npt.NDArray[np.float32]]


class Pipeline(Protocol):
    """What is measured: an `AsyncOmni`, or a stand-in for it."""

    async def generate(self, request: OmniRequest) -> Reply: ...


class Other(Protocol):
    """What it is measured against."""

    threads: int

    def generate(self, questions: Sequence[str]) -> Generated: ...


class Row(msgspec.Struct, frozen=True):
    """One batch size. Times are medians in seconds, ratios transformers' over ours."""

    batch: int
    seconds: float  # until all answers are complete
    reference_seconds: float
    speedup: float
    ttfa_s: float  # to the first sound of the request that had to wait longest
    reference_ttfa_s: float
    ttfa_speedup: float
    frames_per_second: float
    reference_frames_per_second: float
    threads: int  # of ours: one in each of three stages
    reference_threads: int
    rounds: int
    same_output: bool  # every sound in every round, within SAME_AUDIO: so all codes and tokens


@dataclass(slots=True)
class _Rounds:
    ours: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    same_output: bool = True


def request(question: str) -> OmniRequest:
    """A question whose answer has a fixed length."""
    fixed = {"temperature": 0.0, "ignore_eos": True, "repetition_penalty": 1.0}
    return OmniRequest(
        text=question,
        params={"speaker": SPEAKER},
        sampling={
            "thinker": {**fixed, "max_tokens": TEXT_TOKENS},
            "talker": {**fixed, "max_tokens": FRAMES},
        },
    )


async def measure(
    pipeline: Pipeline,
    other: Other,
    batches: Sequence[int],
    rounds: int,
    on_round: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """A row for each batch size. Raises what a request fails with."""
    measured = []
    for batch in batches:
        questions = [QUESTIONS[index % len(QUESTIONS)] for index in range(batch)]
        on_round(f"batch {batch}, warm-up")
        await _round(pipeline, other, questions, _Rounds())
        taken = _Rounds()
        for index in range(rounds):
            on_round(f"batch {batch}, round {index + 1} of {rounds}")
            await _round(pipeline, other, questions, taken)
        measured.append(_row(batch, taken, other.threads))
    return measured


async def _round(pipeline: Pipeline, other: Other, questions: list[str], taken: _Rounds) -> None:
    began = time.perf_counter()
    replies = await asyncio.gather(*(pipeline.generate(request(each)) for each in questions))
    taken.ours.append(time.perf_counter() - began)
    taken.first.append(max(_first_sound(reply) for reply in replies))
    # Nothing else runs meanwhile: the stages sleep.
    generated = other.generate(questions)
    taken.theirs.append(generated.seconds)
    pairs = zip(replies, generated.sounds, strict=True)
    taken.same_output &= all(_same(reply.audio, sound) for reply, sound in pairs)


def _first_sound(reply: Reply) -> float:
    """Seconds to it; for ever without one."""
    return math.inf if reply.timings.ttfa_s is None else reply.timings.ttfa_s


def _same(ours: npt.NDArray[np.float32] | None, theirs: npt.NDArray[np.float32]) -> bool:
    """transformers decodes at once, ours in windows: up to what the context leaves out."""
    if ours is None or ours.shape != theirs.shape:
        return False
    return bool(np.abs(ours - theirs).max() < SAME_AUDIO)


def _row(batch: int, taken: _Rounds, threads: int) -> Row:
    ours, theirs = statistics.median(taken.ours), statistics.median(taken.theirs)
    first = statistics.median(taken.first)
    ratios = zip(taken.theirs, taken.ours, strict=True)
    return Row(
        batch=batch,
        seconds=ours,
        reference_seconds=theirs,
        speedup=statistics.median(a / b for a, b in ratios),
        ttfa_s=first,
        reference_ttfa_s=theirs,
        ttfa_speedup=theirs / first if first else 0.0,
        frames_per_second=batch * FRAMES / ours,
        reference_frames_per_second=batch * FRAMES / theirs,
        threads=STAGES,
        reference_threads=threads,
        rounds=len(taken.ours),
        same_output=taken.same_output,
    )


def table(name: str, measured: Sequence[Row]) -> Table:
    """The rows as a person reads them."""
    rounds = min(row.rounds for row in measured)
    same = all(row.same_output for row in measured)
    made = Table(
        box=SIMPLE_HEAD,
        title=f"{name}: Antiphon and transformers' generate()",
        caption=f"medians of {rounds} rounds; {TEXT_TOKENS} tokens of text and {FRAMES} frames"
        f" each; {STAGES} stages of one thread, transformers on {measured[0].reference_threads};"
        f" sounds {'equal' if same else 'DIFFER: these rows compare nothing'}",
    )
    for heading in (
        "batch",
        "all done s",
        "transformers s",
        "speedup",
        "first sound s",
        "transformers s",
        "speedup",
        "frames/s",
        "transformers",
    ):
        made.add_column(heading, justify="right")
    for row in measured:
        made.add_row(
            str(row.batch),
            f"{row.seconds:.3f}",
            f"{row.reference_seconds:.3f}",
            f"{row.speedup:.2f}",
            f"{row.ttfa_s:.3f}",
            f"{row.reference_ttfa_s:.3f}",
            f"{row.ttfa_speedup:.2f}",
            f"{row.frames_per_second:.0f}",
            f"{row.reference_frames_per_second:.0f}",
        )
    return made
