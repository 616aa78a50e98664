"""From the decoder's outputs to a waveform, for any stretch of an utterance.

The source-filter synthesis of hibari (`hibari.dsp.synth`, Apache-2.0), taken apart so that a
stretch of frames sounds as it does within the whole: a pulse train from the pitch, filtered, plus
shaped noise, plus a branch of free phase, then one inverse STFT.

    S = exp(h) e^{i pi tanh(t)} STFT(pulses) + exp(n) noise + exp(r) e^{i a}

Two things reach further than a few frames. The pulse train's phase is a sum from the utterance's
start: it is passed in and out. The noise is drawn for each frame from the frame's own index.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hibari import dsp

Floats = npt.NDArray[np.float32]

SPECTRUM_REACH = 1
"""Frames of spectrum on either side that the samples of a frame depend on."""

MARGIN = 4
"""Frames of pitch on either side that the samples of a frame depend on."""

_BINS = dsp.N_FFT // 2 + 1
_LOWEST, _HIGHEST = np.float32(40.0), np.float32(11000.0)  # Hz: least voiced pitch, last harmonic


@dataclass(frozen=True, slots=True)
class Span:
    """Where frames lie in their utterance: the index of the first one to be sounded, and how many
    frames of context stand before and after those. The default is a whole utterance.
    """

    first: int = 0
    left: int = 0
    right: int = 0


def synthesise(
    spectrum: Floats, pitch: Floats, seed: int, span: Span = Span(), phase: float = 0.0
) -> tuple[Floats, float]:
    """The waveform [300 * frames without context] from spectrum parts [frames, 3005] and pitch in
    Hz [frames], and the phase at its end.

    `phase` is the pulse train's at the start of frame `span.first`, in periods times 24,000, as
    the call for the frames before gave it. With `MARGIN` frames of context on either side, or all
    there are, the result is that of the whole utterance up to float rounding. The noise comes from
    `seed` and the frames' indices alone.
    """
    frames = len(pitch)
    pulses, phases = _pulse_train(pitch, span.left, phase)
    parts = spectrum.reshape(frames, 5, _BINS)
    harmonic, turn, noise, free, angle = (parts[:, k] for k in range(5))
    # Frame by frame in memory, so that a frame's numbers are rounded alike wherever it stands.
    mixed = np.ascontiguousarray(dsp.stft(pulses, frames).T, np.complex64)
    mixed *= _polar(harmonic, np.tanh(turn) * np.float32(np.pi))
    mixed += frame_noise(seed, span.first - span.left, frames) * dsp.ex(noise)
    mixed += _polar(free, angle)
    wave: Floats = dsp.ola(mixed.T)
    end = frames - span.right
    return wave[dsp.HOP * span.left : dsp.HOP * end], float(phases[end])


def _polar(log_magnitude: Floats, angle: Floats) -> npt.NDArray[np.complex64]:
    """exp(log_magnitude) e^{i angle}, of the arguments' shape."""
    out = np.empty(angle.shape, np.complex64)
    np.cos(angle, out=out.real)
    np.sin(angle, out=out.imag)
    out *= dsp.ex(log_magnitude)
    return out


def _pulse_train(
    pitch: Floats, anchor: int, phase: float
) -> tuple[Floats, npt.NDArray[np.float64]]:
    """A train of all harmonics below 11 kHz at unit amplitude, 0 where unvoiced [300 * frames], and
    its phases at the frames' borders [frames + 1]. At the start of frame `anchor` it has `phase`.

    sum_{k=1..K} cos(k t) = sin((K + 1/2) t) / (2 sin(t / 2)) - 1/2
    """
    hertz = _per_sample(pitch)
    voiced = hertz > _LOWEST
    np.maximum(hertz, _LOWEST, out=hertz)
    # Exact: float32 from 32 on are multiples of 2^-18, and float64 holds their sums below 2^35
    # (more than an hour). So it does not matter where a sum is cut, nor for how long it runs.
    sums = np.cumsum(hertz, dtype=np.float64)
    phases = np.concatenate(([0.0], sums[dsp.HOP - 1 :: dsp.HOP]))
    shift = phase - phases[anchor]
    sums += shift
    phases += shift
    t = (np.modf(sums * (1.0 / dsp.SR))[0] * (2 * np.pi)).astype(np.float32)
    count = np.floor(_HIGHEST / hertz) + np.float32(0.5)  # K + 1/2
    divisor = np.sin(t * np.float32(0.5)) * np.float32(2)
    peak = np.abs(divisor) <= 2e-3  # the limit for t -> 0 is K + 1/2
    divisor[peak] = 1
    train = np.where(peak, count, np.sin(count * t) / divisor) - np.float32(0.5)
    return np.where(voiced, train, np.float32(0)), phases


def _per_sample(pitch: Floats) -> Floats:
    """The pitch of each sample, linear between the frames' centres, level beyond the outer ones."""
    weight = ((np.arange(dsp.HOP) + 0.5) / dsp.HOP - 0.5) % 1.0
    later = weight.astype(np.float32)
    earlier = np.float32(1) - later
    padded = np.pad(pitch, 1, mode="edge")[:, None]
    half = dsp.HOP // 2  # before it a sample lies between this frame and the last one
    out = np.empty((len(pitch), dsp.HOP), np.float32)
    out[:, :half] = padded[:-2] * earlier[:half] + padded[1:-1] * later[:half]
    out[:, half:] = padded[1:-1] * earlier[half:] + padded[2:] * later[half:]
    return out.reshape(-1)


def frame_noise(seed: int, first: int, frames: int) -> npt.NDArray[np.complex64]:
    """Complex normal noise [frames, 601] for the frames from index `first` on."""
    out = np.empty((frames, 2 * _BINS), np.float32)
    for row, frame in zip(out, range(first, first + frames), strict=True):
        np.random.default_rng((seed, frame)).standard_normal(out=row, dtype=np.float32)
    return out.view(np.complex64)
