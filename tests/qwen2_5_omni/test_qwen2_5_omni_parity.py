"""Text, codes and sound of all stages against transformers' `generate`: fp32, greedy, exact."""

from __future__ import annotations

import pytest
import torch

from antiphon.errors import InputTooLongError
from antiphon.models.qwen2_5_omni.tiny import write_tiny
from engine_pool import EnginePool
from qwen2_5_omni_oracle import Oracle, chat, generate, sound
from qwen2_5_omni_stages import (
    BARE,
    FULL,
    SHIFTED,
    STREAM,
    UNTOLD,
    Conversation,
    talker_spec,
    thinker_spec,
    token2wav_spec,
)
from tiny import MAX_LEN, Driven

Stages = tuple[Driven, Driven]
SAID = (
    "hello there",
    "how are you, and what is it",
    "x",
    "a longer question, with more words in it than the others have",
)


LONG = (48, 64)  # tokens of text and speech
# Codes that a neighbour has said when another request comes, which at a full edge is at the talker
# only when its text is done: this one loses its blocks then.
NEIGHBOUR = {STREAM: 60, FULL: 10}


def oracles(folder: str, text_tokens: int = 16, talker_tokens: int = 40) -> list[Oracle]:
    return [generate(folder, chat(folder, text), text_tokens, talker_tokens) for text in SAID]


@pytest.fixture(scope="module", autouse=True)
def answers(checkpoint: str) -> None:
    """Those of transformers take longer than any test may; they are kept."""
    oracles(checkpoint)
    oracles(checkpoint, *LONG)


def check(talk: Conversation, uid: str, oracle: Oracle) -> None:
    assert talk.errors(uid) == []
    assert talk.text(uid) == oracle.text
    assert talk.codes(uid) == oracle.talker
    assert torch.equal(talk.sound(uid), oracle.waveform)


@pytest.mark.parametrize("edge", [STREAM, FULL])
def test_a_request_is_transformers(
    edge: str, roomy: Stages, vocoder: Driven, checkpoint: str
) -> None:
    """Alone, twice: its prompt is in the prefix cache then, and its rows are computed all the
    same.
    """
    oracle = oracles(checkpoint)[3]
    for _ in range(2):
        talk = Conversation(*roomy, vocoder)
        talk.say("a", oracle.prompt, edge=edge)
        talk.run()
        check(talk, "a", oracle)
        talk.assert_empty()


def test_a_request_for_text_alone_finds_its_prompt_in_the_cache(
    roomy: Stages, checkpoint: str
) -> None:
    """One that feeds no talker: the cache holds what the others have computed."""
    oracle = oracles(checkpoint)[3]
    thinker = roomy[0]
    thinker.clear()
    for uid in ("first", "again"):
        thinker.submit(uid, oracle.prompt, sampling={"max_tokens": 16})
        thinker.run()
        assert thinker.tokens(uid) == oracle.text
    assert thinker.cached_tokens("again") >= 32


@pytest.mark.parametrize("edge", [STREAM, FULL])
@pytest.mark.parametrize("memory", ["roomy", "cramped"])
def test_a_batch_is_transformers(
    memory: str, edge: str, vocoder: Driven, checkpoint: str, request: pytest.FixtureRequest
) -> None:
    """Mixed lengths; with little room prompts come in chunks and requests lose their blocks, of
    both stages.
    """
    talk = Conversation(*request.getfixturevalue(memory), vocoder)
    expected = oracles(checkpoint, *LONG)
    for number, oracle in enumerate(expected):
        text, speech = LONG
        talk.say(f"r{number}", oracle.prompt, edge=edge, text_tokens=text, talker_tokens=speech)
    talk.run()
    for number, oracle in enumerate(expected):
        check(talk, f"r{number}", oracle)
    lost = {uid.endswith("'") for uid in talk.preempted}
    assert lost == ({True, False} if memory == "cramped" else set())
    talk.assert_empty()


@pytest.mark.parametrize("edge", [STREAM, FULL])
def test_one_request_in_chunks_and_again(
    edge: str, cramped: Stages, vocoder: Driven, checkpoint: str
) -> None:
    """Its prompt takes two steps, and of each stage a neighbour, who came first, takes its
    blocks.
    """
    talk = Conversation(*cramped, vocoder)
    oracle, speaker, _, writer = oracles(checkpoint, *LONG)
    talk.say("speaker", speaker.prompt, talker_tokens=140, talker={"ignore_eos": True})
    while len(talk.codes("speaker")) < NEIGHBOUR[edge]:
        talk.step()
    thinker = talk.stages[0]
    thinker.submit("writer", writer.prompt, sampling={"max_tokens": 50})
    text, speech = LONG
    talk.say("r", oracle.prompt, edge=edge, text_tokens=text, talker_tokens=speech)
    talk.run()
    assert talk.preempted == {"r", "r'"}
    check(talk, "r", oracle)
    assert thinker.tokens("writer")[:text] == writer.text
    talk.assert_empty()


def test_what_is_wrong_shows(roomy: Stages, vocoder: Driven, checkpoint: str) -> None:
    """Negative controls: without embeddings, with rows shifted by one, without the text's end."""
    oracle = oracles(checkpoint)[0]
    said = {}
    for edge in (STREAM, BARE, SHIFTED, UNTOLD):
        talk = Conversation(*roomy, vocoder)
        talk.say("a", oracle.prompt, edge=edge)
        talk.run()
        assert talk.errors("a") == []
        said[edge] = talk.codes("a")
        talk.assert_empty()
    assert said.pop(STREAM) == oracle.talker
    assert oracle.talker not in said.values()
    assert said[SHIFTED][0] == said[UNTOLD][0] == oracle.talker[0]
    told = len(oracle.text) - 2  # from this output on the end of the text is heard
    assert said[UNTOLD][: told + 1] == oracle.talker[: told + 1]


def test_each_speaker_and_each_seed_sounds_as_in_transformers(
    roomy: Stages, vocoder: Driven, checkpoint: str
) -> None:
    """In one batch; a speaker changes the codes too, a seed the sound alone."""
    talk = Conversation(*roomy, vocoder)
    chosen = {"a": ("Chelsie", 0), "b": ("Chelsie", 7), "c": ("Ethan", 7)}
    prompt = chat(checkpoint, SAID[1])
    for uid, (speaker, seed) in chosen.items():
        talk.say(uid, prompt, params={"speaker": speaker.lower(), "seed": seed})
    talk.run()
    for uid, (speaker, seed) in chosen.items():
        check(talk, uid, generate(checkpoint, prompt, 16, 40, speaker=speaker, seed=seed))
    assert talk.codes("a") == talk.codes("b") != talk.codes("c")
    assert not torch.equal(talk.sound("a"), talk.sound("b"))
    talk.assert_empty()


def test_the_global_generator_is_left_alone(
    roomy: Stages, vocoder: Driven, checkpoint: str
) -> None:
    """Other requests of the process sample with it."""
    before = torch.random.get_rng_state()
    talk = Conversation(*roomy, vocoder)
    talk.say("a", chat(checkpoint, SAID[2]))
    talk.run()
    assert len(talk.sound("a"))
    assert torch.equal(torch.random.get_rng_state(), before)
    talk.assert_empty()


def test_an_unknown_speaker_ends_its_request_alone(
    roomy: Stages, vocoder: Driven, checkpoint: str
) -> None:
    """Before its answer is written."""
    oracle = oracles(checkpoint)[2]
    talk = Conversation(*roomy, vocoder)
    talk.say("bad", chat(checkpoint, SAID[0]), params={"speaker": "Nobody"})
    talk.say("good", oracle.prompt)
    talk.run()
    thinker, talker, _ = talk.stages
    (ended,) = thinker.endings("bad")
    assert ended.error is not None
    assert ended.error.code == "invalid_parameter"
    assert "Chelsie, Ethan" in ended.error.message
    check(talk, "good", oracle)
    talker.abort("bad'")
    talk.stages[2].abort("bad''")
    talk.assert_empty()


def test_what_is_too_long_ends_alone(roomy: Stages, vocoder: Driven, checkpoint: str) -> None:
    oracle = oracles(checkpoint)[2]
    talk = Conversation(*roomy, vocoder)
    talk.say("good", oracle.prompt)
    talk.say("long", [*oracle.prompt, *[7] * MAX_LEN])
    talk.run()
    _, talker, sounder = talk.stages
    assert talk.errors("long") == [InputTooLongError.code]
    assert talk.text("long") == []
    check(talk, "good", oracle)
    talker.abort("long'")  # as the orchestrator does it
    sounder.abort("long''")
    talk.assert_empty()


@pytest.fixture(scope="module")
def ending(
    engines: EnginePool, checkpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Driven, Driven, Driven]:
    """The same weights, with ids that end text and speech early; the folder and its stages."""
    oracle = oracles(checkpoint)[1]
    text_end = oracle.text[9]
    assert oracle.text.index(text_end) == 9
    before = generate(checkpoint, tuple(oracle.prompt), 10, 40)  # the last is not forwarded
    codec_end = before.talker[25]
    folder = tmp_path_factory.mktemp("ending")
    write_tiny(folder, text_end=text_end, codec_end=codec_end)
    return (
        str(folder),
        engines.stage(thinker_spec("ending-thinker", str(folder))),
        engines.stage(talker_spec("ending-talker", str(folder))),
        engines.stage(token2wav_spec("ending-token2wav", str(folder))),
    )


@pytest.mark.parametrize("edge", [STREAM, FULL])
def test_text_and_speech_end_by_their_own_ids(
    edge: str, ending: tuple[str, Driven, Driven, Driven]
) -> None:
    """Those of the checkpoint's configuration; the id that ends speech is not heard."""
    folder, *stages = ending
    prompt = chat(folder, SAID[1])
    oracle = generate(folder, prompt, 16, 40)
    assert len(oracle.text) == 10
    assert 0 < len(oracle.codes) < len(oracle.talker) < 40
    talk = Conversation(*stages)
    talk.say("a", prompt, edge=edge)
    talk.run()
    check(talk, "a", oracle)
    talk.assert_empty()


@pytest.mark.parametrize("edge", [STREAM, FULL])
def test_an_answer_without_a_word_has_no_speech(
    edge: str, ending: tuple[str, Driven, Driven, Driven]
) -> None:
    """Its first token is its last; transformers' `generate` falls over that."""
    folder, *stages = ending
    talk = Conversation(*stages)
    talk.say("a", chat(folder, SAID[1]), edge=edge, text_tokens=1)
    talk.run()
    assert talk.errors("a") == []
    assert len(talk.text("a")) == 1
    assert talk.codes("a") == []
    assert len(talk.sound("a")) == 0
    assert [out.finish for out in talk.stages[2].endings("a''")] == ["stop"]
    talk.assert_empty()


def test_the_oracle_of_codes_alone_is_that_of_the_whole(checkpoint: str) -> None:
    oracle = oracles(checkpoint)[0]
    assert torch.equal(sound(checkpoint, oracle.codes), oracle.waveform)
    assert not torch.equal(sound(checkpoint, oracle.codes, seed=1), oracle.waveform)
