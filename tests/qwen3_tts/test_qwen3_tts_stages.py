"""The two stages give what official code gives: every code equal, the waveform bit for bit or to
1e-5.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from antiphon.errors import InputTooLongError
from qwen3_tts_stages import (
    FULL,
    SAMPLES,
    STREAM,
    Speaking,
    about,
    case,
    codes_of,
    params_of,
    plain_cases,
    references,
)
from tiny import Driven

TALKERS = ["talker", "cramped_talker", "overlapped_talker"]
BATCH = [
    "sentence-english-streaming",
    "short-english-whole",
    "long-english-whole",
    "pair-auto-streaming",
    "sentence-penalised-streaming",
]


@pytest.fixture(params=TALKERS)
def any_talker(request: pytest.FixtureRequest) -> Driven:
    found: Driven = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("name", plain_cases())
def test_codes_and_sound(name: str, talker: Driven, code2wav: Driven) -> None:
    """One request, everything at the end: with the official code's own windows, bit for bit."""
    speaking = Speaking(talker, code2wav)
    speaking.say("r", name)
    speaking.run()
    assert speaking.errors("r") == []
    assert speaking.spoken("r") == codes_of(name)
    assert torch.equal(speaking.sound("r"), references()[f"{name}.wave"])
    speaking.assert_empty()


def test_batch(any_talker: Driven, code2wav: Driven) -> None:
    """Mixed lengths; in the cramped talkers prompts in pieces, and preemption."""
    speaking = Speaking(any_talker, code2wav)
    for name in BATCH:
        speaking.say(name, name)
    speaking.run()
    for name in BATCH:
        assert speaking.errors(name) == []
        assert speaking.spoken(name) == codes_of(name)
        wave = references()[f"{name}.wave"]
        torch.testing.assert_close(speaking.sound(name), wave, rtol=0, atol=1e-5)
    cramped = any_talker.spec.name != "talker"
    assert bool(speaking.preempted) == cramped
    speaking.assert_empty()


def test_streamed_sound(any_talker: Driven, code2wav: Driven) -> None:
    """Chunks as the talker makes the frames: the first has one, and the whole is the same, because
    the context is as long as what the small codec sees.
    """
    speaking = Speaking(any_talker, code2wav)
    for name in BATCH:
        speaking.say(name, name, edge=STREAM)
    speaking.run()
    for name in BATCH:
        assert speaking.spoken(name) == codes_of(name)
        sounds = speaking.sounds(name)
        assert len(sounds[0]) == SAMPLES
        assert len(sounds) > 2
        wave = references()[f"{name}.wave"]
        torch.testing.assert_close(torch.cat(sounds), wave, rtol=0, atol=1e-5)
    speaking.assert_empty()


@pytest.mark.parametrize("stage", ["cramped_talker", "overlapped_talker"])
def test_one_request_in_pieces_and_again(
    stage: str, code2wav: Driven, request: pytest.FixtureRequest
) -> None:
    """Its prompt takes two steps, and a long neighbour, who came first, takes its blocks."""
    name, other = "sentence-auto-whole", "sentence-auto-streaming"
    speaking = Speaking(request.getfixturevalue(stage), code2wav)
    speaking.say("long", other, max_tokens=64, min_tokens=64)
    while len(speaking.talker.tokens("long")) < 40:
        speaking.step()
    speaking.say("r", name)
    speaking.run()
    assert speaking.preempted == {"r"}
    assert speaking.errors("r") == []
    assert speaking.spoken("r") == codes_of(name)
    assert torch.equal(speaking.sound("r"), references()[f"{name}.wave"])
    assert speaking.frames("long")[: case(other)["frames"]] == codes_of(other)
    speaking.assert_empty()


def _told(speaking: Speaking, how: str, uid: str, edge: str | None = FULL) -> None:
    """Have one text spoken with an instruction."""
    name = "written-told-whole"
    params = {**params_of(name), "instruct": f"be {how}, and speak as if to us alone"}
    speaking.say(uid, name, edge=edge, params=params)


def test_rows_are_not_shared_by_a_prefix_cache(
    cached_talker: Driven, talker: Driven, code2wav: Driven
) -> None:
    """Everyone's prompt has the same ids, and two have more of them than a block: its key has to
    tell whose rows are in it. In two rounds, with preemption, and for requests that send nothing,
    which alone may read the cache.
    """
    ways = ("calm", "loud")
    speaking = Speaking(talker, code2wav)
    for how in ways:
        _told(speaking, how, how)
    speaking.run()
    expected = {how: speaking.frames(how) for how in ways}
    assert expected["calm"] != expected["loud"]
    speaking.assert_empty()
    for turn in ("first", "second"):
        speaking = Speaking(cached_talker, code2wav)
        for name in BATCH:
            speaking.say(f"{name}-{turn}", name)
        for how in ways:
            _told(speaking, how, f"{how}-{turn}")
        speaking.run()
        for how in ways:
            _told(speaking, how, f"silent-{how}-{turn}", None)
        speaking.run()
        for how in ways:
            assert speaking.frames(f"{how}-{turn}") == expected[how]
            assert cached_talker.tokens(f"silent-{how}-{turn}") == [row[0] for row in expected[how]]
        for name in BATCH:
            assert speaking.errors(f"{name}-{turn}") == []
            assert speaking.spoken(f"{name}-{turn}") == codes_of(name)
        assert speaking.preempted
        speaking.assert_empty()


@pytest.mark.parametrize(
    "other",
    [
        {"speaker": "eric"},
        {"language": "auto"},
        {"non_streaming_mode": True},
    ],
    ids=str,
)
def test_a_wrong_voice_is_seen(other: dict[str, object], talker: Driven, code2wav: Driven) -> None:
    """Negative control: whatever a request says changes the codes."""
    name = "sentence-english-streaming"
    speaking = Speaking(talker, code2wav)
    speaking.say("r", name, params={**params_of(name), **other})
    speaking.run()
    assert speaking.errors("r") == []
    assert speaking.spoken("r") != codes_of(name)
    speaking.assert_empty()


def test_the_least_number_of_tokens_counts(talker: Driven, code2wav: Driven) -> None:
    """Negative control: without it this text's utterance ends before it begins."""
    name = "early-english-streaming"
    speaking = Speaking(talker, code2wav)
    speaking.say("r", name, min_tokens=0)
    speaking.run()
    assert speaking.errors("r") == []
    assert (len(speaking.frames("r")), speaking.spoken("r")) == (1, [])
    assert speaking.sound("r").numel() == 0
    speaking.assert_empty()


def test_the_limit_gives_its_last_frame(talker: Driven, code2wav: Driven) -> None:
    """The official code makes no frame of the token that reaches the limit; it is made here."""
    name = "sentence-auto-whole"
    speaking = Speaking(talker, code2wav)
    speaking.say("r", name, max_tokens=5)
    speaking.run()
    assert speaking.spoken("r") == codes_of(name)[:5]
    assert len(speaking.sound("r")) == 5 * SAMPLES
    speaking.assert_empty()


def test_one_bad_request_hurts_no_other(talker: Driven, code2wav: Driven) -> None:
    name = "sentence-english-streaming"
    speaking = Speaking(talker, code2wav)
    speaking.say("good", name, edge=FULL)
    speaking.say("bad", name, params={"speaker": "nobody"})
    speaking.run()
    assert speaking.errors("bad")[0] == "invalid_parameter"
    assert speaking.spoken("good") == codes_of(name)
    speaking.code2wav.abort("bad'")
    speaking.assert_empty()


@pytest.mark.parametrize(
    "wrong",
    [
        {"params": {"instruct": "slowly " * 50}},
        {"params": {"non_streaming_mode": True}, "ids": [7] * 300},
    ],
    ids=["instruction", "text"],
)
def test_what_is_too_long_ends_alone(
    wrong: dict[str, Any], talker: Driven, code2wav: Driven
) -> None:
    """The stage's model length is 256: also what the adapter adds counts."""
    name = "sentence-english-streaming"
    speaking = Speaking(talker, code2wav)
    speaking.say("good", name)
    speaking.say("long", name, **wrong)
    speaking.run()
    assert speaking.errors("long")[0] == InputTooLongError.code
    assert speaking.frames("long") == []
    assert speaking.spoken("good") == codes_of(name)
    assert torch.equal(speaking.sound("good"), references()[f"{name}.wave"])
    speaking.code2wav.abort("long'")
    speaking.assert_empty()


def test_versions_are_recorded() -> None:
    assert about()["versions"]["qwen-tts"] == "0.1.1"
