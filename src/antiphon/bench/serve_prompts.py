"""What is asked: small questions that are built in, or a file's."""

from __future__ import annotations

from pathlib import Path

import msgspec

from antiphon.errors import InvalidRequestError

QUESTIONS = (
    "Why is the sky blue?",
    "Name three rivers in Europe.",
    "What is the capital of Spain?",
    "How do birds find their way south?",
    "Explain in two sentences what a prime number is.",
    "What should I cook tonight with rice and tomatoes?",
    "Who wrote the play Hamlet?",
    "Why do we have leap years?",
    "Give me one tip for learning a language.",
    "What does a compiler do?",
    "How far away is the moon?",
    "Tell me a short story about a lighthouse.",
    "What is the difference between weather and climate?",
    "How does a bicycle stay upright?",
    "Name the planets of the solar system.",
    "What makes bread rise?",
)


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str


class Prompt(msgspec.Struct, frozen=True):
    """One call's question: a conversation whose last message is the question."""

    messages: tuple[Message, ...]
    max_tokens: int | None = None
    """Longest answer, over that of the command line."""

    @property
    def text(self) -> str:
        """The question itself."""
        return self.messages[-1].content


class _Line(msgspec.Struct):
    """Of a JSON Lines file; `prompt` and `output_tokens` are the names of vLLM's custom data."""

    prompt: str = ""
    messages: tuple[Message, ...] = ()
    output_tokens: int | None = None


def built_in() -> tuple[Prompt, ...]:
    """The questions that need no file."""
    return tuple(_asked(question) for question in QUESTIONS)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a file: with the suffix .jsonl an object on each line, with `prompt` or
    `messages` and perhaps `output_tokens`; else a question on each line. Empty lines are skipped.

    Raises InvalidRequestError for a file that is not there or not this.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"--dataset {path} cannot be read: {error}") from error
    prompts = [
        _json(line, f"{path}, line {number}") if path.suffix == ".jsonl" else _asked(line.strip())
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not prompts:
        raise InvalidRequestError(f"--dataset {path} has no question in it; give one on each line")
    return tuple(prompts)


def _asked(question: str, max_tokens: int | None = None) -> Prompt:
    return Prompt((Message("user", question),), max_tokens)


def _json(line: str, where: str) -> Prompt:
    try:
        found = msgspec.json.decode(line, type=_Line)
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"{where}: {error}") from error
    if found.messages:
        return Prompt(found.messages, found.output_tokens)
    if not found.prompt.strip():
        raise InvalidRequestError(f'{where}: there is neither "prompt" nor "messages"')
    return _asked(found.prompt, found.output_tokens)
