"""Frame chunking: which windows a stream is cut into, and that decoding them loses nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.frames import FrameChunker, FrameWindows, Framing, Window
from antiphon.core.options import Scalar
from antiphon.errors import TopologyError

RAMPS = [1, 1.1, 1.5, 2, 2.0, 3.7, 25.0]
framings = st.builds(
    Framing,
    initial=st.integers(1, 12),
    steady=st.integers(1, 12),
    ramp=st.sampled_from(RAMPS),
    left=st.integers(0, 8),
    right=st.integers(0, 8),
    refill_tail=st.booleans(),
)
arrivals = st.lists(st.integers(0, 9), max_size=20)


def sizes(framing: Framing, count: int) -> list[int]:
    """The chunk sizes that the definition gives."""
    return [min(framing.steady, math.ceil(framing.initial * framing.ramp**i)) for i in range(count)]


def cut(framing: Framing | None, pushes: list[int]) -> list[Window]:
    chunker = FrameChunker(framing)
    windows = [window for count in pushes for window in chunker.push(count)]
    return windows + chunker.flush()


def new_frames(windows: list[Window]) -> list[int]:
    return [window.stop - window.first for window in windows]


# --- what a stream is cut into ------------------------------------------------------------------


@given(framings, st.integers(0, 80))
def test_new_frames_are_the_stream_in_chunks_of_the_ramp(framing: Framing, count: int) -> None:
    windows = cut(framing, [count])
    assert [i for window in windows for i in range(window.first, window.stop)] == list(range(count))
    full = sizes(framing, len(windows))
    assert new_frames(windows)[:-1] == full[:-1]
    assert all(0 < new <= size for new, size in zip(new_frames(windows), full, strict=True))


@given(framings, arrivals)
def test_windows_do_not_depend_on_how_frames_arrive(framing: Framing, pushes: list[int]) -> None:
    assert cut(framing, pushes) == cut(framing, [sum(pushes)])


@given(framings, st.integers(0, 60))
def test_a_window_comes_as_soon_as_it_is_complete(framing: Framing, count: int) -> None:
    chunker, pushed = FrameChunker(framing), 0
    for exist in range(1, count + 1):
        for window in chunker.push(1):
            assert window.end == exist
            assert (window.right, window.last) == (framing.right, False)
            pushed += 1
    # What would have been the next one was not complete.
    full = sizes(framing, pushed + 1)
    assert sum(full) + framing.right > count


@given(framings, arrivals)
def test_context_is_what_there_is(framing: Framing, pushes: list[int]) -> None:
    for window in cut(framing, pushes):
        assert window.right == min(framing.right, sum(pushes) - window.stop)
        if not (window.last and framing.refill_tail):
            assert window.left == min(framing.left, window.first)


@given(framings, arrivals)
def test_the_very_last_window_is_marked(framing: Framing, pushes: list[int]) -> None:
    chunker = FrameChunker(framing)
    for count in pushes:
        assert not any(window.last for window in chunker.push(count))
    marks = [window.last for window in chunker.flush()]
    assert marks == [False] * (len(marks) - 1) + [True] * bool(marks)


@given(framings, arrivals)
def test_a_refilled_tail_has_the_shape_of_a_steady_window(
    framing: Framing, pushes: list[int]
) -> None:
    windows = cut(replace(framing, refill_tail=True), pushes)
    plain = cut(replace(framing, refill_tail=False), pushes)
    assert [replace(window, left=0) for window in windows] == [
        replace(window, left=0) for window in plain
    ]
    for window, unfilled in zip(windows, plain, strict=True):
        if window.last:
            assert window.end - window.start == min(framing.window, sum(pushes))
        else:
            assert window.left == unfilled.left


def test_the_ramp_of_a_real_codec() -> None:
    framing = Framing(initial=4, steady=25, left=3, right=2)
    assert cut(framing, [70]) == [
        Window(first=0, stop=4, left=0, right=2, last=False),
        Window(first=4, stop=12, left=3, right=2, last=False),
        Window(first=12, stop=28, left=3, right=2, last=False),
        Window(first=28, stop=53, left=3, right=2, last=False),
        Window(first=53, stop=70, left=3, right=0, last=True),
    ]


def test_the_first_chunk_is_no_larger_than_a_steady_one() -> None:
    assert new_frames(cut(Framing(initial=10, steady=4), [10])) == [4, 4, 2]


def test_chunks_of_a_slow_ramp_are_rounded_up() -> None:
    framing = Framing(initial=10, steady=16, ramp=1.1)
    assert new_frames(cut(framing, [96])) == [10, 11, 13, 14, 15, 16, 16, 1]


@pytest.mark.parametrize(("ramp", "second"), [(1, 2), (1.7e308, 3), (10**400, 3)])
def test_any_ramp_reaches_the_end_of_a_long_stream(ramp: float, second: int) -> None:
    windows = cut(Framing(initial=2, steady=3, ramp=ramp), [10_000])
    assert new_frames(windows)[:3] == [2, second, second]
    assert windows[-1].stop == 10_000


@pytest.mark.parametrize("refill_tail", [False, True])
def test_a_stream_shorter_than_the_first_chunk_is_one_window(refill_tail: bool) -> None:
    """C20: a one-word answer is heard."""
    chunker = FrameChunker(Framing(initial=10, left=5, right=5, refill_tail=refill_tail))
    assert chunker.push(1) == []
    assert chunker.flush() == [Window(first=0, stop=1, left=0, right=0, last=True)]


def test_nothing_left_is_no_window() -> None:
    chunker = FrameChunker(Framing(initial=4))
    assert [window.stop for window in chunker.push(4)] == [4]
    assert chunker.flush() == []


def test_without_a_framing_all_is_one_window_at_the_end() -> None:
    chunker = FrameChunker(None)
    assert chunker.push(3) == chunker.push(100_000) == []
    assert chunker.keep_from == 0
    assert chunker.flush() == [Window(first=0, stop=100_003, left=0, right=0, last=True)]
    assert cut(None, []) == []


@pytest.mark.parametrize("act", [FrameChunker.flush, lambda chunker: chunker.push(1)])
def test_nothing_follows_a_flush(act: Callable[[FrameChunker], object]) -> None:
    chunker = FrameChunker(Framing())
    chunker.flush()
    with pytest.raises(ValueError, match="new chunker"):
        act(chunker)


def test_frames_cannot_go_away() -> None:
    with pytest.raises(ValueError, match="-1 frames"):
        FrameChunker(Framing()).push(-1)


# --- the frames of the windows ------------------------------------------------------------------


@given(st.none() | framings, arrivals)
def test_windows_come_with_their_frames(framing: Framing | None, pushes: list[int]) -> None:
    windows, expected, exist = FrameWindows[str](framing), FrameChunker(framing), 0
    for count in pushes:
        pushed = windows.push([f"frame {i}" for i in range(exist, exist + count)])
        exist += count
        assert [window for window, _ in pushed] == expected.push(count)
        for window, frames in pushed:
            assert frames == [f"frame {i}" for i in range(window.start, window.end)]
        assert len(windows) == exist - expected.keep_from
        assert framing is None or len(windows) <= framing.window
    flushed = windows.flush()
    assert [window for window, _ in flushed] == expected.flush()
    for window, frames in flushed:
        assert frames == [f"frame {i}" for i in range(window.start, window.end)]
    assert len(windows) == 0


@pytest.mark.parametrize("refill_tail", [False, True])
def test_memory_of_a_long_stream_is_the_window(refill_tail: bool) -> None:
    """C24, C25: 10,000 steps, bursts included."""
    framing = Framing(left=25, right=4, refill_tail=refill_tail)
    windows, most = FrameWindows[int](framing), 0
    for step in range(10_000):
        windows.push(range(500) if step % 1000 == 0 else [step])
        most = max(most, len(windows))
    assert 25 < most <= framing.window


def test_a_stream_that_is_not_cut_is_held() -> None:
    """Negative control of the bound: memory grows where nothing is given away."""
    windows = FrameWindows[int](None)
    windows.push(range(1000))
    assert len(windows) == 1000


def test_nothing_is_added_after_a_flush() -> None:
    windows = FrameWindows[int](Framing())
    windows.flush()
    with pytest.raises(ValueError, match="new chunker"):
        windows.push([1])
    assert len(windows) == 0


# --- sample-exactness ---------------------------------------------------------------------------


@dataclass(frozen=True)
class LinearVocoder:
    """Frame i's samples are sums over frames [i - past, i + future]; the end is `lost`.

    Whole numbers in float64, so that sums are exact in any order.
    """

    past: int
    future: int
    samples_per_frame: int = 8
    lost: int = 0  # samples that a decode is short of frames * samples_per_frame

    def decode(self, frames: list[int]) -> np.ndarray:
        # [past + 1 + future, samples_per_frame]
        taps = self.past + 1 + self.future
        weights = np.arange(1.0, taps * self.samples_per_frame + 1).reshape(taps, -1)
        padded = np.pad(np.array(frames, np.float64), (self.past, self.future))
        rows = [padded[i : i + taps] @ weights for i in range(len(frames))]
        samples = np.concatenate(rows)
        return samples[: max(0, len(samples) - self.lost)]

    def decode_window(self, window: Window, frames: list[int]) -> np.ndarray:
        """The samples that this window adds. What the last decode lost is made from its context."""
        first, stop = (
            max(0, frame * self.samples_per_frame - self.lost)
            for frame in (window.first, window.stop)
        )
        offset = window.start * self.samples_per_frame
        return self.decode(frames)[first - offset : stop - offset]


def stream(
    vocoder: LinearVocoder, framing: Framing | None, frames: list[int], pushes: list[int]
) -> np.ndarray:
    """Decode window by window; `pushes` says how many frames arrive at a time, then the rest."""
    windows, decoded, rest = FrameWindows[int](framing), [np.empty(0)], frames
    for count in [*pushes, len(frames)]:
        arrived, rest = rest[:count], rest[count:]
        decoded += [vocoder.decode_window(*taken) for taken in windows.push(arrived)]
    decoded += [vocoder.decode_window(*taken) for taken in windows.flush()]
    return np.concatenate(decoded)


SPEECH = [1 + i * i % 17 for i in range(60)]  # no frame is silent
VOCODERS = [
    LinearVocoder(past=0, future=0),
    LinearVocoder(past=3, future=0),
    LinearVocoder(past=3, future=2),
    LinearVocoder(past=3, future=2, lost=5),  # less than a frame
    LinearVocoder(past=2, future=1, lost=11),  # more than one
]


def least_context(vocoder: LinearVocoder) -> tuple[int, int]:
    """Left and right frames that are just enough: lost samples are made by the next window."""
    again = math.ceil(vocoder.lost / vocoder.samples_per_frame)
    return vocoder.past + again, vocoder.future


@pytest.mark.parametrize("count", [1, 3, 50, 60])
@pytest.mark.parametrize("chunk", [1, 4, 25, None], ids=["1", "4", "25", "all"])
@pytest.mark.parametrize("vocoder", VOCODERS, ids=str)
def test_streaming_decodes_what_one_shot_does(
    vocoder: LinearVocoder, chunk: int | None, count: int
) -> None:
    """C18: no sample is lost or changed where chunks meet."""
    framing = None
    if chunk is not None:
        left, right = least_context(vocoder)
        framing = Framing(chunk, chunk, ramp=1, left=left, right=right)
    frames = SPEECH[:count]
    assert np.array_equal(stream(vocoder, framing, frames, [2, 7]), vocoder.decode(frames))


@given(framings, st.sampled_from(VOCODERS), arrivals, st.integers(1, 60))
def test_any_framing_with_enough_context_is_exact(
    framing: Framing, vocoder: LinearVocoder, pushes: list[int], count: int
) -> None:
    """C18: ramps, more context than needed, and refilled tails too."""
    left, right = least_context(vocoder)
    enough = replace(framing, left=max(framing.left, left), right=max(framing.right, right))
    frames = SPEECH[:count]
    assert np.array_equal(stream(vocoder, enough, frames, pushes), vocoder.decode(frames))


@pytest.mark.parametrize(("left", "right"), [(2, 2), (3, 1)])
@pytest.mark.parametrize("chunk", [1, 4, 25])
def test_one_frame_of_context_too_few_is_heard(chunk: int, left: int, right: int) -> None:
    """Negative control of C18."""
    vocoder = LinearVocoder(past=3, future=2)
    framing = Framing(chunk, chunk, ramp=1, left=left, right=right)
    samples = stream(vocoder, framing, SPEECH, [])
    assert len(samples) == len(vocoder.decode(SPEECH))
    assert not np.array_equal(samples, vocoder.decode(SPEECH))


@given(framings, arrivals)
def test_the_same_windows_decode_to_the_same_samples(framing: Framing, pushes: list[int]) -> None:
    """With too little context the oracle is the same windowing, not the one-shot decode."""
    vocoder = LinearVocoder(past=9, future=9)
    oracle = [
        vocoder.decode_window(window, SPEECH[window.start : window.end])
        for window in cut(framing, [len(SPEECH)])
    ]
    assert np.array_equal(stream(vocoder, framing, SPEECH, pushes), np.concatenate(oracle))


# --- options ------------------------------------------------------------------------------------


def test_options_of_an_edge() -> None:
    options: dict[str, Scalar] = {
        "initial_frames": 4,
        "steady_frames": 30,
        "frame_ramp": 1.5,
        "left_context": 25,
        "right_context": 2,
        "refill_tail": True,
        "speaker": "one of the adapter's own",
    }
    assert Framing.from_options(options, "edge e") == Framing(4, 30, 1.5, 25, 2, True)


def test_absent_options_have_defaults() -> None:
    assert Framing.from_options({}, "edge e") == Framing(
        initial=10, steady=25, ramp=2.0, left=0, right=0, refill_tail=False
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("initial_frames", 0),
        ("initial_frames", True),
        ("steady_frames", 25.0),
        ("steady_frames", "25"),
        ("left_context", -1),
        ("right_context", -1),
        ("frame_ramp", 0.9),
        ("frame_ramp", math.nan),
        ("frame_ramp", math.inf),
        ("frame_ramp", True),
        ("frame_ramp", "2"),
        ("refill_tail", 1),
        ("refill_tail", "yes"),
    ],
)
def test_a_wrong_option_is_named_with_its_owner(key: str, value: Scalar) -> None:
    with pytest.raises(TopologyError, match=f"edge codes of pipeline voice: {key} is"):
        Framing.from_options({key: value}, "edge codes of pipeline voice")
