"""A text as a prompt, against transformers' `apply_chat_template`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from antiphon.errors import (
    EmptyInputError,
    InputTooLongError,
    InvalidRequestError,
    ModelUnavailableError,
)
from antiphon.models.codec_lm.entries import SPEECH_START, SpeechEntry
from antiphon.pipeline.entry import EntryRequest, Message
from codec_lm_tiny import MAX_POSITIONS, TEMPLATE

TEXTS = ["Hello there.", "Ein Satz — mit „Umlauten“ äöü.", "{braces} and %s\n\nand lines"]


@pytest.fixture
def lm(checkpoints: dict[str, str], tmp_path: Path) -> Path:
    """A language model whose files a test may change."""
    return Path(shutil.copytree(checkpoints["llama"], tmp_path / "lm"))


def llasa(folder: Path, text: str) -> list[int]:
    """The prompt of the model card, made by transformers."""
    asked = f"<|TEXT_UNDERSTANDING_START|>{text}<|TEXT_UNDERSTANDING_END|>"
    chat = [
        {"role": "user", "content": "Convert the text to speech:" + asked},
        {"role": "assistant", "content": SPEECH_START},
    ]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    made = tokenizer.apply_chat_template(
        chat, tokenize=True, continue_final_message=True, return_dict=True
    )
    return list(made["input_ids"])


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_becomes_llasas_prompt(lm: Path, text: str) -> None:
    assert SpeechEntry(lm).prompts(EntryRequest(text=text)) == [llasa(lm, text)]


@pytest.mark.parametrize("text", TEXTS)
def test_without_llasas_tokens_the_text_is_the_users_turn(lm: Path, text: str) -> None:
    file = lm / "tokenizer.json"
    file.write_text(file.read_text().replace("<|TEXT_UNDERSTANDING_END|>", "<|other|>"))
    expected = AutoTokenizer.from_pretrained(lm).apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
    )
    assert SpeechEntry(lm).prompts(EntryRequest(text=text)) == [list(expected["input_ids"])]


def test_messages_are_spoken_one_after_the_other(lm: Path) -> None:
    messages = (Message("system", " "), Message("user", "One."), Message("assistant", "Two. "))
    assert SpeechEntry(lm).prompts(EntryRequest(messages=messages)) == [llasa(lm, "One.\n\nTwo.")]


@pytest.mark.parametrize("form", ["text", "list"])
def test_the_template_may_lie_in_the_tokenizers_config(lm: Path, form: str) -> None:
    (lm / "chat_template.jinja").unlink()
    file = lm / "tokenizer_config.json"
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": TEMPLATE}]
    given = {"chat_template": named if form == "list" else TEMPLATE}
    file.write_text(json.dumps({**json.loads(file.read_text()), **given}))
    assert SpeechEntry(lm).prompts(EntryRequest(text="Hello.")) == [llasa(lm, "Hello.")]


def test_a_checkpoint_without_a_template(lm: Path) -> None:
    (lm / "chat_template.jinja").unlink()
    with pytest.raises(ModelUnavailableError, match="no chat template"):
        SpeechEntry(lm)


def test_a_template_that_drops_what_has_begun(lm: Path) -> None:
    (lm / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    with pytest.raises(ModelUnavailableError, match="leaves out"):
        SpeechEntry(lm).prompts(EntryRequest(text="Hello."))


def test_a_template_that_refuses(lm: Path) -> None:
    (lm / "chat_template.jinja").write_text("{{ raise_exception('only in verse') }}")
    with pytest.raises(InvalidRequestError, match="only in verse"):
        SpeechEntry(lm).prompts(EntryRequest(text="Hello."))


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_nothing_to_speak(lm: Path, text: str) -> None:
    with pytest.raises(EmptyInputError, match="nothing to speak"):
        SpeechEntry(lm).prompts(EntryRequest(text=text))


def test_more_than_the_model_has_positions_for(lm: Path) -> None:
    entry = SpeechEntry(lm)
    room = MAX_POSITIONS - len(entry.prompts(EntryRequest(text="a"))[0])
    assert len(entry.prompts(EntryRequest(text="a" * room))[0]) == MAX_POSITIONS - 1
    with pytest.raises(InputTooLongError, match=f"{MAX_POSITIONS} tokens"):
        entry.prompts(EntryRequest(text="a" * (room + 1)))


def test_parameters_that_nobody_takes(lm: Path) -> None:
    with pytest.raises(InvalidRequestError, match="voice"):
        SpeechEntry(lm).prompts(EntryRequest(text="Hello.", params={"voice": "ann"}))
