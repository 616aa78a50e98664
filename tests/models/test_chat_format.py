"""A checkpoint's chat template without transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from antiphon.errors import InvalidRequestError, ModelUnavailableError
from antiphon.models.chat import ChatFormat, chat_template

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'odd' %}{{ raise_exception('odd role') }}{% endif %}"
    "{% if m.role == 'stop' %}{% break %}{% endif %}{{ m.role }} {{ m.content }} end {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
WORDS = {word: i for i, word in enumerate(("?", "user", "assistant", "end", "hello", "well"))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="?"))  # noqa: S106  no password
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return tmp_path


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_conversation_ends_with_the_beginning_of_its_answer(folder: Path) -> None:
    assert ChatFormat(folder).prompt([user("hello")]) == [1, 4, 3, 2]


def test_a_continuation_closes_the_answer(folder: Path) -> None:
    assert ChatFormat(folder).continuation(user("well")) == [3, 1, 5, 3, 2]


def test_templates_may_break_out_of_loops(folder: Path) -> None:
    turns = [user("hello"), {"role": "stop", "content": ""}, user("well")]
    assert ChatFormat(folder).prompt(turns) == [1, 4, 3, 2]


def test_what_the_template_refuses_is_the_callers_mistake(folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match="odd role"):
        ChatFormat(folder).prompt([{"role": "odd", "content": ""}])


def test_the_sandbox_holds(folder: Path) -> None:
    """The template came with the weights: it reaches nothing of this process."""
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(InvalidRequestError):
        ChatFormat(folder).prompt([user("hello")])


def test_json_is_not_escaped_for_html(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0].content | tojson }}")
    expected = ChatFormat(folder).encode('"hello <&> well"')
    assert ChatFormat(folder).prompt([user("hello <&> well")]) == expected


@pytest.mark.parametrize("name", ["chat_template.json", "tokenizer_config.json"])
def test_older_checkpoints_have_it_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(json.dumps({"chat_template": "here"}))
    assert chat_template(tmp_path) == "here"


def test_no_template_is_the_checkpoints_fault(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelUnavailableError, match=r"chat_template\.jinja"):
        chat_template(tmp_path)


def test_no_tokenizer_is_the_checkpoints_fault(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelUnavailableError, match="save_pretrained"):
        ChatFormat(folder)


@pytest.mark.parametrize("source", ["{% for m in messages %}", "{{ messages[ }}", "{% bogus %}"])
def test_a_template_with_a_mistake_is_the_checkpoints_fault(folder: Path, source: str) -> None:
    (folder / "chat_template.jinja").write_text(source)
    with pytest.raises(ModelUnavailableError, match="has a mistake"):
        ChatFormat(folder)


@pytest.mark.parametrize("source", ["{{ messages[0].content + 1 }}", "{{ 1 // 0 }}"])
def test_what_the_template_cannot_compute_is_refused(folder: Path, source: str) -> None:
    (folder / "chat_template.jinja").write_text(source)
    with pytest.raises(InvalidRequestError, match="refuses the conversation"):
        ChatFormat(folder).prompt([user("hello")])


def test_half_a_surrogate_pair_is_no_text(folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be encoded"):
        ChatFormat(folder).prompt([user("hello \ud800")])


def test_of_several_templates_it_is_the_default(tmp_path: Path) -> None:
    several = [{"name": "tools", "template": "no"}, {"name": "default", "template": "here"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert chat_template(tmp_path) == "here"


@pytest.mark.parametrize("value", [[], [{"name": "tools", "template": "no"}], ["default"], 3, None])
def test_templates_without_a_default_are_none(tmp_path: Path, value: object) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(ModelUnavailableError, match="no chat template"):
        chat_template(tmp_path)


@pytest.mark.parametrize("name", ["chat_template.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["{", "[]", "\udcff"])
def test_files_that_are_damaged_are_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, errors="surrogateescape")
    with pytest.raises(ModelUnavailableError, match=name):
        chat_template(tmp_path)


def test_special_tokens_are_given_by_name(folder: Path) -> None:
    """As by transformers: a text or an object, and none that is null or not known there."""
    config = {
        "bos_token": "hello",
        "eos_token": {"content": "well"},
        "pad_token": None,
        "own_token": "user",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    source = (
        "{{ bos_token }} {{ messages[0].content }} {{ eos_token }} {{ pad_token }}{{ own_token }}"
    )
    (folder / "chat_template.jinja").write_text(source)
    assert ChatFormat(folder).prompt([user("end")]) == [4, 3, 5]


def test_it_imports_neither_vllm_nor_torch() -> None:
    code = (
        "import sys, antiphon.models.chat\n"
        "print(sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
