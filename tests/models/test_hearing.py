"""Conversations with sounds: the checkpoint's own template and configuration say how."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from antiphon.errors import EmptyInputError, InvalidRequestError, ModelUnavailableError
from antiphon.models.hearing import HearingChat, audio_token
from antiphon.pipeline.audio import AudioClip
from antiphon.pipeline.entry import EntryRequest, Message, Prompt

WORDS = ("?", "user", "assistant", "hi", "what", "<hear>", "<pad>", "</hear>")
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {% if m.content is string %}{{ m.content }} {% else %}"
    "{% for part in m.content %}{% if part.type == 'audio' %}<hear> <pad> </hear> "
    "{% else %}{{ part.text }} {% endif %}{% endfor %}{% endif %}{% endfor %}assistant"
)
CLIP = AudioClip.from_array(np.zeros(2000, np.int16), 16_000)
OTHER = AudioClip.from_array(np.ones(2000, np.int16), 16_000)


def checkpoint(folder: Path, template: str = TEMPLATE, **config: object) -> Path:
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="?"))  # noqa: S106
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    given = config or {"thinker_config": {"audio_token_id": 6}}
    (folder / "config.json").write_text(json.dumps(given))
    return folder


def words(*text: str) -> list[int]:
    return [WORDS.index(word) for word in " ".join(text).split()]


def test_clips_come_before_the_text_of_their_message(tmp_path: Path) -> None:
    chat = HearingChat(checkpoint(tmp_path))
    messages = (
        Message("user", "what", (CLIP, OTHER)),
        Message("assistant", "hi"),
        Message("user", "", (CLIP,)),
    )
    sound = "<hear> <pad> </hear>"
    expected = words("user", sound, sound, "what assistant hi user", sound, "assistant")
    assert chat.prompt(EntryRequest(messages=messages)) == Prompt(expected, (CLIP, OTHER, CLIP))


def test_a_text_with_its_sound(tmp_path: Path) -> None:
    chat = HearingChat(checkpoint(tmp_path))
    sound = words("user <hear> <pad> </hear> what assistant")
    assert chat.prompt(EntryRequest("what", audio=(CLIP,))) == Prompt(sound, (CLIP,))
    assert chat.prompt(EntryRequest("what")) == words("user what assistant")


def test_nothing_to_answer(tmp_path: Path) -> None:
    with pytest.raises(EmptyInputError):
        HearingChat(checkpoint(tmp_path)).prompt(EntryRequest(" "))


def test_a_text_that_holds_the_models_mark(tmp_path: Path) -> None:
    """Beside a sound it would be taken for one; without, it is what it says."""
    chat = HearingChat(checkpoint(tmp_path))
    with pytest.raises(InvalidRequestError, match="the model's own mark for a sound"):
        chat.prompt(EntryRequest("hi <pad>", audio=(CLIP,)))
    assert chat.prompt(EntryRequest("hi <pad>")) == words("user hi <pad> assistant")


def test_a_template_without_a_place_for_sounds(tmp_path: Path) -> None:
    chat = HearingChat(checkpoint(tmp_path, "{{ messages[0].role }} assistant"))
    with pytest.raises(ModelUnavailableError, match="has 0 places for 1 sounds"):
        chat.prompt(EntryRequest("hi", audio=(CLIP,)))


@pytest.mark.parametrize(
    "config",
    [
        {"audio_token_id": 6},
        {"thinker_config": {"audio_token_index": 6}},
        {"thinker_config": {"audio_token_id": 6, "audio_token_index": 7}},
    ],
)
def test_where_the_placeholder_is_named(tmp_path: Path, config: dict[str, object]) -> None:
    assert audio_token(checkpoint(tmp_path, **config)) == 6


@pytest.mark.parametrize("config", ["{}", "[]", "no json", '{"audio_token_id": null}'])
def test_a_checkpoint_that_does_not_hear(tmp_path: Path, config: str) -> None:
    (checkpoint(tmp_path) / "config.json").write_text(config)
    with pytest.raises(ModelUnavailableError, match="audio_token_id"):
        audio_token(tmp_path)
