"""What the voice says is understood: one sentence always, forty of them in the slow run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from antiphon.models.voice import phonemes
from antiphon.models.voice.vocabulary import CODES_PER_SECOND, FIRST_CODE, SAMPLE_RATE

if TYPE_CHECKING:
    from voice_engines import StockEngine

    from judge import Judge

MAX_WORD_ERROR_RATE = 0.05


def codes_of(tokens: list[int]) -> list[int]:
    return [token - FIRST_CODE for token in tokens if token >= FIRST_CODE]


def test_one_sentence_is_understood(
    talker: StockEngine, code2wav: StockEngine, judge: Judge
) -> None:
    """Text to sound and back gives the words."""
    text = "The doctor asked him to take a deep breath."
    (spoken,) = talker.run(phonemes.prompts(text))
    (sound,) = code2wav.run([codes_of(spoken.tokens)])
    assert sound.tensor is not None
    heard = judge.transcribe(sound.tensor.numpy(), SAMPLE_RATE)
    assert heard == "the doctor asked him to take a deep breath"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_word_error_rate(
    talker: StockEngine,
    code2wav: StockEngine,
    judge: Judge,
    sentences: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At most five words in a hundred are misheard, and speech is made faster than real time."""
    prompts = [prompt for text in sentences for prompt in phonemes.prompts(text)]
    assert len(prompts) == len(sentences)
    talker.run(prompts[:1])  # what is done once, before the clock
    start = time.perf_counter()
    codes = [codes_of(result.tokens) for result in talker.run(prompts)]
    spoken = time.perf_counter()
    sounds = [result.tensor for result in code2wav.run(codes)]
    done = time.perf_counter()
    (alone,) = talker.run(prompts[:1])
    single = (time.perf_counter() - done) / (len(codes_of(alone.tokens)) / CODES_PER_SECOND)
    seconds = sum(map(len, codes)) / CODES_PER_SECOND
    waves = [np.asarray(sound) for sound in sounds]
    verdict = judge.score(waves, sentences, SAMPLE_RATE)
    with capsys.disabled():
        print(
            f"\nword error rate {verdict.word_error_rate:.1%}, characters"
            f" {verdict.char_error_rate:.1%}; {seconds:.1f} s of speech; RTF talker"
            f" {(spoken - start) / seconds:.3f} (alone {single:.3f}), code2wav"
            f" {(done - spoken) / seconds:.3f}"
        )
    assert verdict.word_error_rate <= MAX_WORD_ERROR_RATE
    assert (done - start) / seconds < 1
    assert single < 1
