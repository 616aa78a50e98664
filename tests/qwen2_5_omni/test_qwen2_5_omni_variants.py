"""Other ways to run the same stages: overlapping steps, sampling with a penalty, bfloat16."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine_pool import EnginePool
from qwen2_5_omni_oracle import chat, generate
from qwen2_5_omni_stages import (
    FULL,
    STREAM,
    TALKER_BLOCK,
    THINKER_BLOCK,
    Conversation,
    cramped,
    talker_spec,
    thinker_spec,
)
from tiny import Driven

# As in the other tests: transformers answers each once.
SAID = (
    "hello there",
    "how are you, and what is it",
    "x",
    "a longer question, with more words in it than the others have",
)


@pytest.fixture(scope="module", autouse=True)
def answers(checkpoint: str) -> None:
    """Those of transformers take longer than any test may; they are kept."""
    for text in SAID:
        prompt = chat(checkpoint, text)
        generate(checkpoint, prompt, 48, 64)
        generate(checkpoint, prompt, 16, 40)
        generate(checkpoint, prompt, 16, 40, penalty=1.3)


def test_a_repetition_penalty_counts_what_transformers_counts(
    roomy: tuple[Driven, Driven], checkpoint: str
) -> None:
    """The codec ids that stand for the prompt, and what was said; nothing of what ran before."""
    before = Conversation(*roomy)
    for number, text in enumerate(SAID):
        before.say(f"b{number}", chat(checkpoint, text))
    before.run()
    talk = Conversation(*roomy)
    plain, expected = [], []
    for number, text in enumerate(SAID):
        prompt = chat(checkpoint, text)
        talk.say(f"r{number}", prompt, talker={"repetition_penalty": 1.3})
        plain.append(generate(checkpoint, prompt, 16, 40).talker)
        expected.append(generate(checkpoint, prompt, 16, 40, penalty=1.3).talker)
    talk.run()
    said = [talk.codes(f"r{number}") for number in range(len(SAID))]
    assert said == expected
    assert said != plain
    talk.assert_empty()


def test_a_seeded_lot_is_the_requests_own(roomy: tuple[Driven, Driven], checkpoint: str) -> None:
    """As the topology samples: alone and among others the codes are the same."""
    lot = {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "seed": 11}
    said = []
    for others in (0, 3):
        talk = Conversation(*roomy)
        for number in range(others):
            talk.say(f"o{number}", chat(checkpoint, SAID[number + 1]))
        talk.say("a", chat(checkpoint, SAID[0]), talker=lot)
        talk.run()
        said.append(talk.codes("a"))
        talk.assert_empty()
    assert said[0] == said[1]
    assert said[0] != generate(checkpoint, chat(checkpoint, SAID[0]), 16, 40).talker


@pytest.mark.parametrize("edge", [STREAM, FULL])
def test_overlapping_steps_are_transformers(
    edge: str, overlapped: tuple[Driven, Driven], vocoder: Driven, checkpoint: str
) -> None:
    """Text, codes and sound with asynchronous scheduling, in chunks and with lost blocks."""
    talk = Conversation(*overlapped, vocoder)
    for number, text in enumerate(SAID):
        prompt = chat(checkpoint, text)
        talk.say(f"r{number}", prompt, edge=edge, text_tokens=48, talker_tokens=64)
    talk.run()
    for number, text in enumerate(SAID):
        oracle = generate(checkpoint, chat(checkpoint, text), 48, 64)
        assert talk.errors(f"r{number}") == []
        assert talk.text(f"r{number}") == oracle.text
        assert talk.codes(f"r{number}") == oracle.talker
        assert torch.equal(talk.sound(f"r{number}"), oracle.waveform)
    assert {uid.endswith("'") for uid in talk.preempted} == {True, False}
    talk.assert_empty()


@pytest.fixture(scope="module")
def overlapped(engines: EnginePool, checkpoint: str) -> tuple[Any, Any]:
    little, less = cramped(THINKER_BLOCK, 8), cramped(TALKER_BLOCK, 7)
    return (
        engines.stage(thinker_spec("o-thinker", checkpoint, async_scheduling=True, **little)),
        engines.stage(talker_spec("o-talker", checkpoint, async_scheduling=True, **less)),
    )


def test_bfloat16_runs(
    engines: EnginePool, vocoder: Driven, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Finite; where it leaves transformers' float32 is told and not judged."""
    talk = Conversation(
        engines.stage(thinker_spec("b-thinker", checkpoint, dtype="bfloat16")),
        engines.stage(talker_spec("b-talker", checkpoint, dtype="bfloat16")),
        vocoder,
    )
    for number, text in enumerate(SAID):
        talk.say(f"r{number}", chat(checkpoint, text))
    talk.run()
    for number, text in enumerate(SAID):
        oracle = generate(checkpoint, chat(checkpoint, text), 16, 40)
        uid = f"r{number}"
        heard = talk.sound(uid)
        assert talk.errors(uid) == []
        assert len(heard)
        assert heard.isfinite().all()
        words = first_other(talk.text(uid), oracle.text)
        said = first_other(talk.codes(uid), oracle.talker)
        with capsys.disabled():
            print(
                f" [{text!r}: first other token of text {words} of {len(oracle.text)},"
                f" of speech {said} of {len(oracle.talker)}]"
            )
    talk.assert_empty()


def first_other(ours: list[int], theirs: list[int]) -> int | str:
    """Where two sequences part, as far as both go."""
    different = (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    return next(different, "none")
