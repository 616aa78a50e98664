"""What callers give becomes a prompt of the thinker, or a typed error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.errors import EmptyInputError, InvalidRequestError, ModelUnavailableError
from antiphon.models.qwen3_omni.entries import ChatEntry
from antiphon.models.qwen3_omni.topology import TOPOLOGY
from antiphon.orchestrator.api import OmniRequest
from antiphon.pipeline.entry import EntryRequest, Message, SessionEntryAdapter
from qwen3_omni_oracle import tokenizer


@pytest.fixture
def chat(checkpoint: str) -> ChatEntry:
    return ChatEntry(Path(checkpoint))


@pytest.mark.parametrize(
    "messages",
    [
        (Message("user", "What is it?"),),
        (Message("system", "Be short."), Message("user", " Hi \n")),
        (Message("user", "Hi"), Message("assistant", "Hello!"), Message("user", "Bye — 7 % 8?")),
    ],
)
def test_a_prompt_is_what_transformers_makes(
    chat: ChatEntry, checkpoint: str, messages: tuple[Message, ...]
) -> None:
    expected = tokenizer(checkpoint).apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    assert chat.prompts(EntryRequest(messages=messages)) == [expected]


def test_a_text_is_one_message(chat: ChatEntry) -> None:
    message = EntryRequest(messages=(Message("user", "Hi"),))
    assert chat.prompts(EntryRequest("Hi")) == chat.prompts(message)


@pytest.mark.parametrize("text", ["", " \n"])
def test_nothing_to_answer_is_an_error(chat: ChatEntry, text: str) -> None:
    with pytest.raises(EmptyInputError):
        chat.prompts(EntryRequest(text))


def test_an_unknown_speaker_is_told_before_any_stage_works(chat: ChatEntry) -> None:
    with pytest.raises(InvalidRequestError, match="chelsie, ethan"):
        chat.prompts(EntryRequest("Hi", params={"speaker": "nobody"}))
    assert chat.prompts(EntryRequest("Hi", params={"speaker": "Ethan"}))


def test_parameters_that_no_model_takes_are_refused() -> None:
    OmniRequest(text="Hi", params={"speaker": "ethan"}).check(TOPOLOGY)
    with pytest.raises(InvalidRequestError, match="takes no parameter 'speeker'; did you mean"):
        OmniRequest(text="Hi", params={"speeker": "ethan"}).check(TOPOLOGY)


def test_it_holds_no_sessions(chat: ChatEntry) -> None:
    assert not isinstance(chat, SessionEntryAdapter)


@pytest.mark.parametrize("missing", ["tokenizer.json", "chat_template.jinja", "config.json"])
def test_a_checkpoint_that_lacks_something_is_refused(
    checkpoint: str, tmp_path: Path, missing: str
) -> None:
    for file in Path(checkpoint).iterdir():
        if file.name != missing:
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(ModelUnavailableError):
        ChatEntry(tmp_path)


def test_entries_import_neither_vllm_nor_torch() -> None:
    """They run in the caller's process."""
    code = (
        "import sys, antiphon.models.qwen3_omni.entries, antiphon.models.qwen3_omni.topology\n"
        "print(sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
