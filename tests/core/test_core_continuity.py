"""The continuity meter: silence in the middle of a playback, against one played tick by tick."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.continuity import CONTINUITY_LIMIT_S, Continuity, ContinuityMeter
from antiphon.core.frames import FrameChunker, Framing

TICK_S = 1 / 1024  # exact in binary, so that the meter's sums are too
FRAME_S = 0.08


def measure(chunks: Iterable[tuple[float, float]]) -> Continuity:
    """The report of chunks of (arrival, duration) in seconds."""
    meter = ContinuityMeter()
    for arrival_s, duration_s in chunks:
        meter.add(arrival_s, duration_s)
    return meter.report()


def played(chunks: list[tuple[int, int]]) -> Continuity:
    """The same report from playing (arrival, duration) in ticks, one tick after the other."""
    arrivals, audio = list(chunks), sum(duration for _, duration in chunks)
    queued = heard = now = silence = 0
    silences: list[int] = []
    while heard < audio:
        while arrivals and arrivals[0][0] <= now:
            queued += arrivals.pop(0)[1]
        if queued:
            silences.append(silence)
            queued, heard, silence = queued - 1, heard + 1, 0
        elif heard:
            silence += 1
        now += 1
    return Continuity(
        chunks=len(chunks),
        audio_s=audio * TICK_S,
        worst_underrun_s=max(silences, default=0) * TICK_S,
        total_underrun_s=sum(silences) * TICK_S,
        gaps=sum(silence * TICK_S > CONTINUITY_LIMIT_S for silence in silences),
    )


@given(st.lists(st.tuples(st.integers(0, 250), st.just(0) | st.integers(1, 250)), max_size=10))
def test_agrees_with_a_playback_tick_by_tick(steps: list[tuple[int, int]]) -> None:
    """C76: arrivals in bursts, empty chunks, silences above and below the limit."""
    arrivals = accumulate(wait for wait, _ in steps)
    chunks = [(at, duration) for at, (_, duration) in zip(arrivals, steps, strict=True)]
    report = measure((at * TICK_S, duration * TICK_S) for at, duration in chunks)
    assert report == played(chunks)
    assert report.continuous == (report.gaps == 0)


def test_one_late_chunk_is_heard_though_the_rate_is_fine() -> None:
    """C76: chunk 13 comes 1.44 s after chunk 12; on average audio is made faster than it plays."""
    waits = [0.3] * 11 + [1.44] + [0.1] * 7
    arrivals = [0.0, *accumulate(waits)]
    report = measure((at, 0.32) for at in arrivals)
    assert report.audio_s > arrivals[-1]
    assert report.worst_underrun_s == pytest.approx(11 * 0.3 + 1.44 - 12 * 0.32)
    assert (report.gaps, report.continuous) == (1, False)


def streamed(framing: Framing, frames: int, frame_takes_s: float) -> Iterator[tuple[float, float]]:
    chunker = FrameChunker(framing)
    for made in range(1, frames + 1):
        for window in chunker.push(1):
            yield made * frame_takes_s, (window.stop - window.first) * FRAME_S


def test_a_tiny_first_chunk_and_a_long_wait_is_a_gap() -> None:
    """C79: 80 ms of audio, then 25 frames have to be made."""
    report = measure(streamed(Framing(initial=1, steady=25, ramp=25), 100, frame_takes_s=0.03))
    assert report.worst_underrun_s == pytest.approx(25 * 0.03 - FRAME_S)
    assert report.gaps == 1


def test_a_ramp_plays_each_chunk_while_the_next_is_made() -> None:
    """C79: the same frames at the same speed, in chunks of 1, 2, 4, 8, 16, 25."""
    report = measure(streamed(Framing(initial=1, steady=25, ramp=2), 100, frame_takes_s=0.03))
    assert report.total_underrun_s == 0
    assert report.continuous


def test_nothing_before_the_first_sound_counts() -> None:
    assert measure([(50.0, 0.0), (90.0, 1.0)]).total_underrun_s == 0


def test_nothing_after_the_last_sound_counts() -> None:
    report = measure([(0.0, 1.0), (60.0, 0.0)])
    assert (report.chunks, report.total_underrun_s) == (2, 0)


def test_an_empty_chunk_does_not_split_a_silence() -> None:
    report = measure([(0.0, 1.0), (1.5, 0.0), (3.0, 1.0)])
    assert (report.worst_underrun_s, report.gaps) == (2.0, 1)


def test_audio_that_came_early_covers_a_late_chunk() -> None:
    assert measure([(0.0, 1.0), (0.0, 1.0), (2.0, 1.0)]).total_underrun_s == 0


def test_a_silence_delays_what_follows() -> None:
    """The listener waits once: what comes on time after the late chunk is not late again."""
    report = measure([(0.0, 1.0), (2.0, 1.0), (3.0, 1.0), (4.0, 1.0)])
    assert (report.total_underrun_s, report.gaps) == (1.0, 1)


def test_short_silences_add_up_without_being_gaps() -> None:
    report = measure((i * 1.0625, 1.0) for i in range(5))
    assert report == Continuity(5, 5.0, 0.0625, 0.25, 0)
    assert report.continuous


@pytest.mark.parametrize(
    ("worst_s", "continuous"),
    [(CONTINUITY_LIMIT_S, True), (math.nextafter(CONTINUITY_LIMIT_S, 1), False)],
)
def test_the_limit_itself_is_continuous(worst_s: float, continuous: bool) -> None:
    assert Continuity(2, 1.0, worst_s, worst_s, 0).continuous is continuous


def test_no_chunk_is_no_silence() -> None:
    assert measure([]) == Continuity(0, 0.0, 0.0, 0.0, 0)


def test_a_report_in_the_middle_leaves_the_meter_as_it_is() -> None:
    meter = ContinuityMeter()
    meter.add(0.0, 1.0)
    assert meter.report() == Continuity(1, 1.0, 0.0, 0.0, 0)
    meter.add(1.5, 1.0)
    assert meter.report() == Continuity(2, 2.0, 0.5, 0.5, 1)


@pytest.mark.parametrize(
    ("arrival_s", "duration_s", "message"),
    [
        (0.5, 1.0, "must not go back"),
        (math.nan, 1.0, "finite"),
        (math.inf, 1.0, "finite"),
        (2.0, -0.1, "0 or more"),
        (2.0, math.nan, "0 or more"),
        (2.0, math.inf, "0 or more"),
    ],
)
def test_a_chunk_that_cannot_be_is_refused(
    arrival_s: float, duration_s: float, message: str
) -> None:
    meter = ContinuityMeter()
    meter.add(1.0, 1.0)
    before = meter.report()
    with pytest.raises(ValueError, match=message):
        meter.add(arrival_s, duration_s)
    assert meter.report() == before
