"""What listeners of many streams hear that share one vocoder: a playback on an injected clock.

The scheduler and its window of streams are the real ones; a talker that makes frames for everybody,
and the time that a step takes, are played. Seconds are the clock's.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import pytest
from sched_engine import Stage, plan

from antiphon.core.continuity import CONTINUITY_LIMIT_S, Continuity, ContinuityMeter
from antiphon.core.frames import FrameChunker, Framing
from antiphon.sched.generation import GenerationScheduler
from antiphon.testing.clock import ManualClock

FRAME_S = 0.08  # of sound
FRAMES = 150  # of each stream
TALKER_S = 0.03  # per frame of each stream, whatever the number of streams
STEP_S, DECODE_S = 0.002, 0.002  # of the vocoder: per step, and per frame of a step
STEP_FRAMES = 32  # at most: 485 frames a second, or 38 streams in real time
WINDOW = 8
STAGGER_S = 0.02  # between the beginnings of two streams


@dataclass
class Listener:
    chunker: FrameChunker
    meter: ContinuityMeter
    chunks: list[int]  # frames of each chunk that has been sent
    heard: int = 0  # chunks


def play(streams: int, active_streams: int, framing: Framing) -> list[Continuity]:
    """What each of them hears."""
    clock = ManualClock()
    stage = Stage(
        GenerationScheduler,
        clock=clock,
        active_streams=active_streams,
        max_num_seqs=STEP_FRAMES,
        max_num_batched_tokens=STEP_FRAMES,
    )
    listeners = {
        f"s{n}": Listener(FrameChunker(framing), ContinuityMeter(), []) for n in range(streams)
    }
    # (time, order, stream, whether it is the last frame)
    frames = [
        (n * STAGGER_S + (frame + 1) * TALKER_S, n * FRAMES + frame, f"s{n}", frame == FRAMES - 1)
        for n, frame in itertools.product(range(streams), range(FRAMES))
    ]
    heapq.heapify(frames)
    for uid in listeners:
        stage.submit(uid, stream=True)
    while frames or stage.has_work:
        if not stage.has_work:
            clock.advance(max(0.0, frames[0][0] - clock()))
        while frames and frames[0][0] <= clock():
            _, _, uid, last = heapq.heappop(frames)
            _frame(stage, uid, listeners[uid], last=last)
        if stage.has_work:
            _step(stage, clock, listeners)
    assert all(listener.heard == len(listener.chunks) for listener in listeners.values())
    stage.check_empty()
    return [listener.meter.report() for listener in listeners.values()]


def _frame(stage: Stage, uid: str, listener: Listener, *, last: bool) -> None:
    """The talker has made one more frame."""
    windows = listener.chunker.push(1) + (listener.chunker.flush() if last else [])
    for window in windows:
        seq = len(listener.chunks)
        listener.chunks.append(window.stop - window.first)
        end = last and window is windows[-1]
        stage.deliver(uid, plan(*[1] * listener.chunks[-1]), seq=seq, end=end)
    if last and not windows:
        stage.deliver_nothing(uid, seq=len(listener.chunks))


def _step(stage: Stage, clock: ManualClock, listeners: dict[str, Listener]) -> None:
    """One step of the vocoder takes its time, and then each of its chunks is heard."""
    done = stage.step()
    assert done.scheduled is not None
    tokens = done.scheduled.num_scheduled_tokens
    if not tokens:
        return
    clock.advance(STEP_S + DECODE_S * sum(tokens.values()))
    for uid, count in tokens.items():
        listener = listeners[uid]
        assert count == listener.chunks[listener.heard]
        listener.heard += 1
        listener.meter.add(clock(), count * FRAME_S)


def continuous(reports: list[Continuity]) -> float:
    """The share of those who hear no gap."""
    return sum(report.worst_underrun_s <= CONTINUITY_LIMIT_S for report in reports) / len(reports)


RAMP = Framing(initial=1, steady=16, ramp=2)


@pytest.mark.parametrize("streams", [1, 4, 8, 16, 64])
def test_nobody_hears_a_gap(streams: int) -> None:
    """C76, C77, C79: from the first, short chunk on; those beyond what the vocoder can do begin
    later, and hear no gap either.
    """
    reports = play(streams, WINDOW, RAMP)
    assert continuous(reports) == 1.0
    assert sum(report.audio_s for report in reports) == pytest.approx(streams * FRAMES * FRAME_S)


def test_without_a_window_everybody_hears_gaps() -> None:
    """C77, the negative control: more streams than the vocoder can do, served in turn."""
    reports = play(64, 0, RAMP)
    assert continuous(reports) == 0.0
    assert min(report.worst_underrun_s for report in reports) > 5 * CONTINUITY_LIMIT_S


def test_without_a_ramp_the_second_chunk_comes_late() -> None:
    """C79, the negative control: a short first chunk and long ones behind it."""
    reports = play(8, WINDOW, Framing(initial=1, steady=16, ramp=16))
    assert continuous(reports) == 0.0
