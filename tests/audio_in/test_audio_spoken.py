"""What is heard is spoken of: with sound in the question, all three stages make what transformers'
own `generate` makes.
"""

from __future__ import annotations

import pytest
import torch

from antiphon.pipeline.audio import AudioClip
from antiphon.stage.resolve import HEARING
from audio_stages import clip, ids
from engine_pool import EnginePool
from qwen3_omni_oracle import Oracle, Tone, chat, generate
from qwen3_omni_stages import Line, code2wav_spec, talker_spec, thinker_spec
from tiny import Driven

TEXT, FRAMES = 16, 24
SOUND = 1e-5  # most that samples may differ: waves are decoded in batches of other sizes
# Equally long: transformers' processor pads the sounds of a prompt before it takes their spectrum.
LOW, HIGH = Tone(1.3, 127.0), Tone(1.3, 291.0)
PAD = 505  # stands for a sound


ASKED: dict[str, tuple[str | Tone, ...]] = {
    "low": (LOW, "what is it?"),
    "high": (HIGH, "what is it?"),
    "both": (LOW, "or", HIGH),
    "none": ("what is it?",),
}
EDGES = pytest.mark.parametrize("edges", [("speak", "codes"), ("speak-whole", "codes-whole")])


def answer(folder: str, uid: str) -> Oracle:
    """transformers makes no frame of the last token: one more, to have this many frames."""
    return generate(folder, chat(folder, *ASKED[uid]), TEXT, FRAMES + 1)


def given(folder: str, uid: str) -> tuple[list[int], tuple[AudioClip, ...]]:
    """What a stage is given: ids and clips."""
    prompt = chat(folder, *ASKED[uid])
    return ids(folder, prompt), tuple(clip(tone) for tone in prompt.tones)


@pytest.fixture(scope="module")
def answers(checkpoint: str) -> dict[str, Oracle]:
    """They take longer than any test may."""
    return {uid: answer(checkpoint, uid) for uid in ASKED}


@pytest.fixture(scope="module")
def stages(engines: EnginePool, checkpoint: str) -> list[Driven]:
    small = {"max_model_len": 192, "max_num_batched_tokens": 16}  # a clip has 17 tokens
    cached = {"blocks": 9, "enable_prefix_caching": True}
    specs = (
        thinker_spec("heard-thinker", checkpoint, **cached, **HEARING, **small),
        talker_spec("heard-talker", checkpoint, blocks=64),
        code2wav_spec("heard-code2wav", checkpoint),
    )
    return [engines.stage(spec) for spec in specs]


def check(line: Line, uid: str, oracle: Oracle) -> None:
    assert line.stages[0].tokens(uid) == oracle.text
    assert line.stages[1].tokens(uid) == oracle.talker[:FRAMES]
    assert torch.equal(line.frames(uid), oracle.codes)
    assert (line.waveform(uid) - oracle.waveform).abs().max() < SOUND


@EDGES
def test_what_was_heard_before_is_spoken_of_again(
    stages: list[Driven], checkpoint: str, edges: tuple[str, str]
) -> None:
    """With prefix caching: a request that is heard computes the rows of its sound each time, one
    that is only read finds them.
    """
    line, thinker = Line(stages), stages[0]
    oracle = answer(checkpoint, "low")
    prompt, audio = given(checkpoint, "low")
    thinker.submit("silent", prompt, audio=audio, sampling={"max_tokens": TEXT})
    line.run()
    for uid in ("first", "again"):
        line.ask(uid, prompt, TEXT, FRAMES, edges=edges, audio=audio)
        line.run()
        check(line, uid, oracle)
        assert thinker.cached_tokens(uid) == 0
    thinker.submit("silent again", prompt, audio=audio, sampling={"max_tokens": TEXT})
    line.run()
    assert thinker.tokens("silent again") == oracle.text
    assert thinker.cached_tokens("silent again") > prompt.index(PAD)
    line.assert_empty()


@EDGES
def test_text_codes_and_sound_are_those_of_transformers(
    stages: list[Driven], checkpoint: str, answers: dict[str, Oracle], edges: tuple[str, str]
) -> None:
    line = Line(stages)
    for uid in ASKED:
        prompt, audio = given(checkpoint, uid)
        line.ask(uid, prompt, TEXT, FRAMES, edges=edges, audio=audio)
    line.run()
    assert line.errors() == []
    for uid, oracle in answers.items():
        check(line, uid, oracle)
    line.assert_empty()
    # So the sound is what it is about.
    assert not torch.equal(answers["low"].codes, answers["high"].codes)
