"""What is heard is spoken of: with sound in the question, all three stages make what transformers'
own `generate` makes.
"""

from __future__ import annotations

import pytest
import torch

from antiphon.stage.resolve import HEARING
from audio_stages import clip, ids
from engine_pool import EnginePool
from qwen3_omni_oracle import Oracle, Prompt, Tone, chat, generate
from qwen3_omni_stages import Line, code2wav_spec, talker_spec, thinker_spec

TEXT, FRAMES = 16, 24
SOUND = 1e-5  # most that samples may differ: waves are decoded in batches of other sizes
# Equally long: transformers' processor pads the sounds of a prompt before it takes their spectrum.
LOW, HIGH = Tone(1.3, 127.0), Tone(1.3, 291.0)


@pytest.fixture(scope="module")
def asked(checkpoint: str) -> dict[str, tuple[Prompt, Oracle]]:
    """transformers makes no frame of the last token: one more, to have this many frames."""
    prompts = {
        "low": chat(checkpoint, LOW, "what is it?"),
        "high": chat(checkpoint, HIGH, "what is it?"),
        "both": chat(checkpoint, LOW, "or", HIGH),
        "none": chat(checkpoint, "what is it?"),
    }
    return {uid: (p, generate(checkpoint, p, TEXT, FRAMES + 1)) for uid, p in prompts.items()}


@pytest.fixture(scope="module")
def line(engines: EnginePool, checkpoint: str) -> Line:
    small = {"max_model_len": 192, "max_num_batched_tokens": 16}  # a clip has 17 tokens
    thinker = thinker_spec("heard-thinker", checkpoint, blocks=9, **HEARING, **small)
    specs = (
        thinker,
        talker_spec("heard-talker", checkpoint, blocks=64),
        code2wav_spec("heard-code2wav", checkpoint),
    )
    return Line([engines.stage(spec) for spec in specs])


@pytest.mark.slow
@pytest.mark.parametrize("edges", [("speak", "codes"), ("speak-whole", "codes-whole")])
def test_text_codes_and_sound_are_those_of_transformers(
    line: Line,
    checkpoint: str,
    asked: dict[str, tuple[Prompt, Oracle]],
    edges: tuple[str, str],
) -> None:
    fresh = Line(line.stages)
    for uid, (prompt, _) in asked.items():
        audio = tuple(clip(tone) for tone in prompt.tones)
        fresh.ask(uid, ids(checkpoint, prompt), TEXT, FRAMES, edges=edges, audio=audio)
    fresh.run()
    assert fresh.errors() == []
    for uid, (_, oracle) in asked.items():
        assert fresh.stages[0].tokens(uid) == oracle.text
        assert fresh.stages[1].tokens(uid) == oracle.talker[:FRAMES]
        assert torch.equal(fresh.frames(uid), oracle.codes)
        assert (fresh.waveform(uid) - oracle.waveform).abs().max() < SOUND
    fresh.assert_empty()
    low, high = asked["low"][1], asked["high"][1]
    assert not torch.equal(low.codes, high.codes)  # so the sound is what it is about
