"""What callers give becomes prompts, or a typed error."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from antiphon.errors import EmptyInputError, InputTooLongError
from antiphon.models.voice import phonemes, weights
from antiphon.models.voice.entries import ChatEntry, SpeechEntry
from antiphon.models.voice.limits import MAX_SPEECH_PARTS
from antiphon.pipeline.detokenize import load_tokenizer
from antiphon.pipeline.entry import EntryRequest, Message, SessionEntryAdapter


@pytest.fixture(scope="module")
def chat() -> ChatEntry:
    """The way in for conversations."""
    return ChatEntry(weights.thinker_checkpoint())


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The thinker's tokenizer."""
    return load_tokenizer(weights.thinker_checkpoint())


@pytest.fixture(scope="module")
def speech() -> SpeechEntry:
    """The way in for text to be spoken."""
    return SpeechEntry(weights.talker_checkpoint())


@pytest.mark.parametrize(
    "messages",
    [
        (Message("user", "What is the capital of France?"),),
        (Message("system", "Be short."), Message("user", "Hi")),
        (Message("user", "Hi"), Message("assistant", "Hello!"), Message("user", "Bye — 7 % 8?")),
    ],
)
def test_chat_prompt_is_what_transformers_makes(
    chat: ChatEntry, messages: tuple[Message, ...]
) -> None:
    """Template and tokenizer without transformers give its ids, default system text included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(weights.thinker_checkpoint())
    expected = tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    assert chat.prompts(EntryRequest(messages=messages)) == [expected]


def test_text_is_one_user_message(chat: ChatEntry) -> None:
    """The short form of a conversation."""
    message = EntryRequest(messages=(Message("user", "Hi"),))
    assert chat.prompts(EntryRequest("Hi")) == chat.prompts(message)


# What callers say and the model answers: no surrounding space, which the template's maker strips,
# and no names of special tokens.
TURNS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=40)
TURNS = TURNS.map(str.strip)


@settings(max_examples=200, deadline=None)
@given(first=TURNS.filter(bool), answer=TURNS, text=TURNS.filter(bool))
def test_continuation_makes_the_prompt_of_the_whole_conversation(
    chat: ChatEntry, tokenizer: Tokenizer, first: str, answer: str, text: str
) -> None:
    """History (prompt, and answer without its end token) and continuation are that prompt."""
    turns = (Message("user", first), Message("assistant", answer), Message("user", text))
    (prompt,) = chat.prompts(EntryRequest(first))
    answered = tokenizer.encode(answer, add_special_tokens=False).ids
    (whole,) = chat.prompts(EntryRequest(messages=turns))
    assert whole == prompt + answered + chat.continuation(text)


def test_continuation_begins_by_closing_the_answer(chat: ChatEntry, tokenizer: Tokenizer) -> None:
    """With the end token: the one that the model sampled is in no cache."""
    expected = "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(chat.continuation(" Hi\n"), skip_special_tokens=False) == expected


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_continuation_is_an_error(chat: ChatEntry, text: str) -> None:
    """Nothing to answer."""
    with pytest.raises(EmptyInputError):
        chat.continuation(text)


def test_conversations_go_on_and_spoken_texts_do_not(chat: ChatEntry, speech: SpeechEntry) -> None:
    """What a session can be opened with."""
    assert isinstance(chat, SessionEntryAdapter)
    assert not isinstance(speech, SessionEntryAdapter)


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_chat_is_an_error(chat: ChatEntry, text: str) -> None:
    """Nothing to answer."""
    with pytest.raises(EmptyInputError):
        chat.prompts(EntryRequest(text))


def test_long_chat_is_an_error(chat: ChatEntry) -> None:
    """Text over the model's length."""
    with pytest.raises(InputTooLongError, match="tokens"):
        chat.prompts(EntryRequest("word " * 3000))


def test_speech_is_one_prompt_per_sentence(speech: SpeechEntry) -> None:
    """Longer texts are spoken sentence by sentence."""
    prompts = speech.prompts(EntryRequest("It rains. The cat sleeps.\n- One\n- Two"))
    parts = ["It rains.", "The cat sleeps.", "One", "Two"]
    assert prompts == [phonemes.prompts(part)[0] for part in parts]


@pytest.mark.parametrize("text", ["", "  ", "🙂🙂", "... !? —"])
def test_nothing_to_speak_is_an_error(speech: SpeechEntry, text: str) -> None:
    """Only emoji or punctuation."""
    with pytest.raises(EmptyInputError):
        speech.prompts(EntryRequest(text))


def test_too_much_to_speak_is_an_error(speech: SpeechEntry) -> None:
    """Each sentence is a request; their number is bounded."""
    with pytest.raises(InputTooLongError, match="sentences"):
        speech.prompts(EntryRequest("Yes. " * (MAX_SPEECH_PARTS + 1)))


def test_entries_import_neither_vllm_nor_torch() -> None:
    """They run in the server's process."""
    code = (
        "import sys, antiphon.models.voice.entries, antiphon.models.voice.topology\n"
        "antiphon.models.voice.phonemes.prompts('zyxomma')\n"
        "print(sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_conversions_import_neither_vllm_nor_torch() -> None:
    """The process that starts the stages converts the models."""
    code = (
        "import sys, antiphon.models.voice.weights, antiphon.models.voice.gguf_convert,"
        " antiphon.models.voice.codec_convert\n"
        "print(sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
