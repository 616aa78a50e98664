"""Prompts with sounds against transformers' `generate`: fp32, greedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.models.qwen2_5_omni.entries import ChatEntry
from antiphon.pipeline.audio import AudioClip
from antiphon.pipeline.entry import EntryRequest, Prompt
from antiphon.stage.resolve import HEARING
from engine_pool import EnginePool
from qwen2_5_omni_oracle import chat, generate, hear, tokenizer
from qwen2_5_omni_stages import FULL, LOUD, STREAM, Conversation, thinker_spec
from qwen3_omni_oracle import SAMPLE_RATE, Tone
from tiny import Driven

LOW, HIGH = Tone(1.3, 127.0), Tone(2.1, 291.0)


def clip(tone: Tone) -> AudioClip:
    return AudioClip.from_array(tone.samples(), SAMPLE_RATE)


@pytest.fixture(scope="module")
def hearing(engines: EnginePool, checkpoint: str) -> Any:
    """A thinker that hears, with prompts in chunks of less than a sound."""
    own = {**HEARING, "max_num_batched_tokens": 16}
    return engines.stage(thinker_spec("hearing", checkpoint, **own))


@pytest.mark.parametrize("edge", [STREAM, FULL])
def test_what_was_heard_is_answered_as_by_transformers(
    edge: str, hearing: Driven, roomy: tuple[Driven, Driven], vocoder: Driven, checkpoint: str
) -> None:
    """Text, codes and sound; two sounds in one prompt, and a prompt without any, in one batch."""
    talk = Conversation(hearing, roomy[1], vocoder)
    prompts = {
        "one": hear(checkpoint, "hi", LOW, "go"),
        "two": hear(checkpoint, LOW, "or", HIGH),
    }
    for uid, prompt in prompts.items():
        ids = tokenizer(checkpoint)(prompt.text)["input_ids"]
        talk.say(uid, ids, edge=edge, audio=tuple(map(clip, prompt.tones)))
        heard = hearing.scheduler.requests[uid].prompt_token_ids
        assert list(heard) == generate(checkpoint, prompt, 16, 40).prompt
    talk.say("none", chat(checkpoint, "hello"), edge=edge)
    talk.run()
    for uid, prompt in {**prompts, "none": chat(checkpoint, "hello")}.items():
        oracle = generate(checkpoint, prompt, 16, 40)
        assert talk.errors(uid) == []
        assert talk.text(uid) == oracle.text
        assert talk.codes(uid) == oracle.talker
        assert torch.equal(talk.sound(uid), oracle.waveform)
    talk.assert_empty()


def test_a_sounds_embeddings_are_left_out(
    hearing: Driven, roomy: tuple[Driven, Driven], checkpoint: str
) -> None:
    """Negative control: with them the talker says something else."""
    talk = Conversation(hearing, roomy[1])
    prompt = hear(checkpoint, "hi", LOW, "go")
    ids = tokenizer(checkpoint)(prompt.text)["input_ids"]
    talk.say("a", ids, edge=LOUD, audio=(clip(LOW),))
    talk.run()
    oracle = generate(checkpoint, prompt, 16, 40)
    assert talk.text("a") == oracle.text
    assert talk.codes("a") != oracle.talker
    talk.assert_empty()


def test_sounds_matter(checkpoint: str) -> None:
    """A negative control of the oracle: another sound, another answer in words and in codes."""
    low = generate(checkpoint, hear(checkpoint, "hi", LOW, "go"), 16, 40)
    other = generate(checkpoint, hear(checkpoint, "hi", Tone(1.3, 800.0), "go"), 16, 40)
    assert low.text != other.text
    assert low.talker != other.talker


def test_the_entry_writes_the_prompt_of_a_sound(checkpoint: str) -> None:
    """One placeholder for each clip, which the stage's processor widens."""
    entry = ChatEntry(Path(checkpoint))
    (prompt,) = entry.prompts(EntryRequest(text="go", audio=(clip(LOW),)))
    assert isinstance(prompt, Prompt)
    heard = hear(checkpoint, LOW, "go")
    assert prompt.token_ids == tokenizer(checkpoint)(heard.text)["input_ids"]
    assert prompt.audio == (clip(LOW),)
