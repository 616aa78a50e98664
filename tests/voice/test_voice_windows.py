"""A stream of codes, decoded window by window, sounds as the utterance decoded at once."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hibari import dsp
from hypothesis import given, settings
from hypothesis import strategies as st
from voice_codec import (
    Chunk,
    Decoding,
    PoolingStates,
    cut,
    load_decoder,
    plain_wave,
    random_codes,
)

from antiphon.errors import AdapterError
from antiphon.models.code_windows import CodeWindow, check_window, window_of
from antiphon.models.voice import phonemes, synthesis
from antiphon.models.voice.codec import FRAMES_PER_CODE, CodecSizes
from antiphon.models.voice.limits import CONTEXT_CODES
from antiphon.models.voice.synthesis import MARGIN, Span, synthesise
from antiphon.models.voice.vocabulary import CODES_PER_SECOND, FIRST_CODE, SAMPLES_PER_CODE

if TYPE_CHECKING:
    from voice_engines import StockEngine

# Of full scale. On the CPUs tried: 0 for chunks of 25, 3e-7 for chunks of 4, 5e-7 for chunks of 1,
# since matrix products of few rows round differently.
TOLERANCE = 1e-5
# Where even the first layers see few rows, the pitch is rounded too and with it the phase.
PITCH_TOLERANCE = 5e-4
WRONG = 1e-2
ALL = 10_000


@pytest.fixture(scope="module")
def decoding() -> Decoding:
    return Decoding()


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    return (a - b).abs().max().item()


# Windows


@pytest.mark.parametrize(
    ("first", "left", "right", "num_codes"),
    [(0, 0, 0, 1), (0, 0, 16, 20), (40, 16, 16, 33), (40, 16, 0, 16)],
)
def test_windows_that_are_in_order(first: int, left: int, right: int, num_codes: int) -> None:
    """Also one without new codes."""
    check_window(first, left, right, num_codes)


@pytest.mark.parametrize(
    ("first", "left", "right", "message"),
    [
        (-1, 0, 0, "at least 0"),
        (0, -1, 0, "at least 0"),
        (0, 0, -1, "at least 0"),
        (8, 4.0, 0, "must be integers"),
        (8, True, 0, "must be integers"),
        (8, 0, "4", "must be integers"),
        (3, 4, 0, "cannot have 4 codes before it"),
        (8, 6, 5, "a prompt of 10 codes cannot hold 6 and 5"),
    ],
)
def test_windows_that_cannot_be(first: Any, left: Any, right: Any, message: str) -> None:
    """Refused where a request can be refused alone; the pooler takes them for whole utterances."""
    with pytest.raises(AdapterError, match=message):
        check_window(first, left, right, 10)
    assert window_of({"first": first, "left": left, "right": right}, 10) == CodeWindow()


@pytest.mark.parametrize(
    ("extra", "window"),
    [
        (None, CodeWindow()),
        ({}, CodeWindow()),
        ({"other": "x"}, CodeWindow()),
        ({"right": 3}, CodeWindow(right=3)),
        ({"first": 9, "left": 2, "right": 3}, CodeWindow(9, 2, 3)),
    ],
)
def test_absent_keys_are_0(extra: Mapping[str, Any] | None, window: CodeWindow) -> None:
    """A request without any is a whole utterance."""
    assert window_of(extra, 10) == window


# What sound depends on


def window_wave(codes: list[int], left: int, right: int) -> torch.Tensor:
    """A window in the middle of a stream, with the same phase always."""
    with torch.inference_mode():
        spectrum, pitch = load_decoder()(torch.tensor([codes]), left, right)
    span = Span(100, min(FRAMES_PER_CODE * left, MARGIN), min(FRAMES_PER_CODE * right, MARGIN))
    return torch.from_numpy(synthesise(spectrum[0].numpy(), pitch[0].numpy(), 0, span, 1e6)[0])


@pytest.mark.parametrize("at", [0, -1], ids=["left", "right"])
@pytest.mark.parametrize(
    ("context", "matters"), [(CONTEXT_CODES, True), (CONTEXT_CODES + 1, False)]
)
def test_context_is_the_smallest_that_will_do(at: int, context: int, matters: bool) -> None:
    """The outermost context code still has an effect, one further out has none: bit for bit."""
    codes = random_codes(2 * context + 3, 7)
    before = window_wave(codes, context, context)
    codes[at] = (codes[at] + 1000) % 2048
    assert torch.equal(before, window_wave(codes, context, context)) is not matters


def test_context_follows_from_the_sizes() -> None:
    """The constant that adapters use is that of the network."""
    assert CodecSizes().context == CONTEXT_CODES


class SameNoise:
    """The noise of an utterance's frames, as hibari asks for it."""

    def standard_normal(self, shape: tuple[int, int], dtype: type[np.float32]) -> Any:
        noise = synthesis.frame_noise(5, 0, shape[1] // 2)
        return np.ascontiguousarray(noise.T).view(dtype)


def test_whole_utterance_is_hibaris_synthesis() -> None:
    """Given the same noise, hibari's own function makes the same wave."""
    with torch.inference_mode():
        spectrum, pitch = (x[0].numpy() for x in load_decoder()(torch.tensor([random_codes(40)])))
    wave, _ = synthesise(spectrum, pitch, seed=5)
    parts = [np.ascontiguousarray(part) for part in spectrum.T.reshape(5, 601, -1)]
    assert np.abs(wave - dsp.synth(*parts, pitch, SameNoise())).max() < 1e-6


def test_noise_belongs_to_its_frame() -> None:
    """Drawn from any frame on it is the same, and no two frames or seeds share theirs."""
    noise = synthesis.frame_noise(0, 0, 10)
    assert np.array_equal(synthesis.frame_noise(0, 4, 3), noise[4:7])
    assert len({row.tobytes() for row in noise}) == 10
    assert not np.array_equal(synthesis.frame_noise(1, 0, 10), noise)


def test_phase_of_a_long_stream_is_exact() -> None:
    """25 s in stretches of half a second: the phase at the end is that of all at once, bit for
    bit, since it is summed without rounding.
    """
    with torch.inference_mode():
        spectrum, pitch = (x[0].numpy() for x in load_decoder()(torch.tensor([random_codes(1000)])))
    _, whole = synthesise(spectrum, pitch, 0)
    phase = 0.0
    for first in range(0, 2000, 40):
        left, right = min(first, MARGIN), min(1960 - first, MARGIN)
        part = slice(first - left, first + 40 + right)
        _, phase = synthesise(spectrum[part], pitch[part], 0, Span(first, left, right), phase)
    assert phase == whole > 1e8


# Streams through the pooler


@pytest.mark.parametrize("size", [1, 4, 25, ALL])
def test_chunks_with_context_equal_the_whole(decoding: Decoding, size: int) -> None:
    """Every sample, whatever the chunk size."""
    codes = random_codes(60, 1)
    wave = decoding.stream(cut(codes, [size]))
    assert wave.dtype == torch.float32
    assert difference(wave, plain_wave(codes)) <= TOLERANCE


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    left=st.integers(CONTEXT_CODES, CONTEXT_CODES + 20),
    right=st.integers(CONTEXT_CODES, CONTEXT_CODES + 20),
    seed=st.integers(0, 99),
)
def test_any_cut_equals_the_whole(
    decoding: Decoding, sizes: list[int], left: int, right: int, seed: int
) -> None:
    """Sizes that change from chunk to chunk, and more context than needed."""
    codes = random_codes(60, seed)
    wave = decoding.stream(cut(codes, sizes, left, right))
    assert difference(wave, plain_wave(codes)) <= TOLERANCE


@pytest.mark.parametrize(("left", "right"), [(CONTEXT_CODES, 2), (2, CONTEXT_CODES), (0, 0)])
def test_too_little_context_is_heard(decoding: Decoding, left: int, right: int) -> None:
    """The tolerance is one that a wrong wave exceeds."""
    codes = random_codes(90, 1)
    wave = decoding.stream(cut(codes, [4], left, right))
    assert difference(wave, plain_wave(codes)) > WRONG


def test_a_stream_without_its_phase_goes_on_differently(decoding: Decoding) -> None:
    """State that was lost is no error, but the wave differs from there on."""
    codes = random_codes(90, 1)
    waves = [decoding.step([chunk], [PoolingStates()])[0] for chunk in cut(codes, [30])]
    whole = plain_wave(codes).split(30 * SAMPLES_PER_CODE)
    assert difference(waves[0], whole[0]) <= TOLERANCE
    assert difference(waves[1], whole[1]) > WRONG


def test_two_streams_do_not_mix(decoding: Decoding) -> None:
    """Their chunks decoded in the same steps, in other places of the batch from step to step, one
    ending earlier: each sounds as it does alone.
    """
    streams = [random_codes(90, 1), random_codes(70, 2)]
    states = [PoolingStates(), PoolingStates()]
    waves: list[list[torch.Tensor]] = [[], []]
    for number, pair in enumerate(zip_longest(*(cut(codes, [8]) for codes in streams))):
        live = [index for index in (0, 1) if pair[index] is not None]
        order = live[::-1] if number % 2 else live
        sounds = decoding.step([pair[i] for i in order], [states[i] for i in order])
        for index, sound in zip(order, sounds, strict=True):
            waves[index].append(sound)
    for codes, parts in zip(streams, waves, strict=True):
        assert difference(torch.cat(parts), plain_wave(codes)) <= TOLERANCE


def test_short_context_sounds_the_same_in_any_batch(decoding: Decoding) -> None:
    """Same windows, same samples, also where the context is too short to be exact."""
    streams = [list(cut(random_codes(64, seed), [8], 4, 4)) for seed in range(3)]
    alone = [decoding.stream(iter(chunks)) for chunks in streams]
    states = [PoolingStates() for _ in streams]
    steps = [decoding.step(chunks, states) for chunks in zip(*streams, strict=True)]
    for index, wave in enumerate(alone):
        assert difference(torch.cat([step[index] for step in steps]), wave) <= PITCH_TOLERANCE


def test_state_stays_small(decoding: Decoding) -> None:
    """Two phases with their places, however long the stream is."""
    state = PoolingStates()
    for chunk in cut(random_codes(200), [5]):
        decoding.step([chunk], [state])
        (table,) = state.hidden_states_cache
        assert table.dtype == torch.float64
        assert table.shape == (2, 2)


def test_a_window_decoded_again_is_the_same(decoding: Decoding) -> None:
    """A step that is repeated gives the same samples, and the stream goes on as if nothing was."""
    state = PoolingStates()
    for chunk in cut(random_codes(60, 3), [20]):
        (once,) = decoding.step([chunk], [state])
        (again,) = decoding.step([chunk], [state])
        assert torch.equal(once, again)


def test_an_utterance_starts_with_phase_0(decoding: Decoding) -> None:
    """What an earlier utterance of the same request left behind is not taken up."""
    state = PoolingStates()
    codes = random_codes(40, 4)
    for chunk in cut(random_codes(60, 3), [20]):
        decoding.step([chunk], [state])
    (wave,) = decoding.step([Chunk(codes, CodeWindow())], [state])
    assert torch.equal(wave, plain_wave(codes))


def test_a_window_without_new_codes_is_silent(decoding: Decoding) -> None:
    """No samples, and the phase stays."""
    codes = random_codes(60, 3)
    chunks = list(cut(codes, [20]))
    nothing = Chunk(codes[16:36], CodeWindow(first=20, left=4, right=16))
    wave = decoding.stream(iter([chunks[0], nothing, *chunks[1:]]))
    assert difference(wave, plain_wave(codes)) <= TOLERANCE


def test_a_wrong_window_leaves_the_others_alone(decoding: Decoding) -> None:
    """It counts as a whole utterance; the step does not fail."""
    good, bad = random_codes(20, 1), random_codes(12, 2)
    chunks = [Chunk(bad, CodeWindow(first=2, left=9, right=9)), Chunk(good, CodeWindow())]
    waves = decoding.step(chunks, [PoolingStates(), PoolingStates()])
    assert torch.equal(waves[0], plain_wave(bad))
    assert torch.equal(waves[1], plain_wave(good))


@pytest.mark.slow
def test_twenty_seconds_of_speech(
    decoding: Decoding, talker: StockEngine, sentences: list[str]
) -> None:
    """Spoken codes, where the pitch is steady and a drifting phase would show."""
    prompts = [prompt for text in sentences[:8] for prompt in phonemes.prompts(text)]
    tokens = [token for result in talker.run(prompts) for token in result.tokens]
    codes = [token - FIRST_CODE for token in tokens if token >= FIRST_CODE]
    assert len(codes) >= 20 * CODES_PER_SECOND
    whole = plain_wave(codes)
    for size in (4, 25):
        assert difference(decoding.stream(cut(codes, [size])), whole) <= TOLERANCE
