"""Sounds of any length as windows that Whisper takes. Neither torch nor vllm is imported here."""

from __future__ import annotations

import numpy as np

from antiphon.models.voice.limits import WINDOW_S
from antiphon.pipeline.audio import MIN_SECONDS, AudioClip

_SEARCH_S = 5.0  # before a window's longest end, where it is cut at the quietest place
_FRAME_S = 0.1  # whose loudness is compared
_BYTES = {"s16": 2, "f32": 4}


def windows(clip: AudioClip) -> list[AudioClip]:
    """The clip in pieces of 30 s at most, none of them shorter than a clip may be.

    A long clip is cut where it is quietest within the last five seconds of a window, so that few
    words are. A clip of ten minutes has 24 windows at most.
    """
    rate = clip.sample_rate
    longest, search = int(WINDOW_S * rate), int(_SEARCH_S * rate)
    samples = clip.array()
    cuts = [0]
    while len(samples) - cuts[-1] > longest:
        # what is left has to be long enough for a clip of its own
        end = min(cuts[-1] + longest, len(samples) - int(np.ceil(MIN_SECONDS * rate)))
        cuts.append(_quietest(samples, end - search, end, max(1, int(_FRAME_S * rate))))
    width = _BYTES[clip.encoding]
    bounds = zip(cuts, [*cuts[1:], len(samples)], strict=True)
    return [
        AudioClip(clip.samples[start * width : end * width], rate, clip.encoding)
        for start, end in bounds
    ]


def _quietest(samples: np.ndarray, start: int, end: int, frame: int) -> int:
    """The middle of the frame with the least energy between `start` and `end`; of equals the
    last.
    """
    power = np.concatenate(([0.0], np.cumsum(np.square(samples[start:end], dtype=np.float64))))
    energy = power[frame:] - power[:-frame]
    at = len(energy) - 1 - int(np.argmin(energy[::-1]))
    return start + at + frame // 2
