"""Conversations as token ids: a checkpoint's tokenizer and chat template, without transformers.

Neither torch nor vllm is imported here: entries run in the orchestrator's process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from antiphon.errors import InvalidRequestError, ModelUnavailableError
from antiphon.models.json_files import read_object
from antiphon.pipeline.detokenize import load_tokenizer

Turn = Mapping[str, Any]
"""One message as templates know it: `role`, and `content`, a text or a list of parts."""

_ANSWER = "\0"  # stands for an answer in a rendered conversation; no template writes it

_TOKENIZER = "tokenizer_config.json"

# transformers' `SPECIAL_TOKENS_ATTRIBUTES`: templates are given them by name.
_SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

# A template computes with what it is given, and may do so wrongly: "hello" + 1.
_FAILURES = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError)


class ChatFormat:
    """How a checkpoint wants its conversations written. Its constructor reads files.

    Raises ModelUnavailableError for a checkpoint without a tokenizer or a chat template.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._tokenizer = load_tokenizer(checkpoint)
        self._template = ChatTemplate(checkpoint)

    def prompt(self, turns: Sequence[Turn]) -> list[int]:
        """The conversation, and the beginning of its answer.

        Raises InvalidRequestError if the template refuses it, or it cannot be encoded.
        """
        return self.encode(self._template.render(turns))

    def continuation(self, turn: Turn) -> list[int]:
        """What the template puts after an answer, up to where the answer to `turn` begins.

        That is independent of the answer: the template closes one with a special token, at which
        the tokenizer always splits, and what the conversation began with is history already.
        Raises as `prompt`.
        """
        before = ({"role": "user", "content": ""}, {"role": "assistant", "content": _ANSWER})
        return self.encode(self._template.render([*before, turn]).partition(_ANSWER)[2])

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are already written. Raises as `encoded`."""
        return encoded(self._tokenizer, text)


class ChatTemplate:
    """A checkpoint's chat template, rendered as transformers' `apply_chat_template` does it.

    Raises ModelUnavailableError for a checkpoint without one, or with one that is no template.
    """

    def __init__(self, checkpoint: Path) -> None:
        # The template is data that came with the model: it runs in jinja2's sandbox, with what
        # transformers' templates may use.
        sandbox = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        sandbox.filters["tojson"] = _to_json
        sandbox.globals["raise_exception"] = _refuse
        sandbox.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        try:
            self._template = sandbox.from_string(chat_template(checkpoint))
        except TemplateError as error:
            raise ModelUnavailableError(
                f"the chat template of {checkpoint} has a mistake: {error}; use the one that came"
                " with the model"
            ) from error
        self._special = _special_tokens(_read_json(checkpoint / _TOKENIZER))

    def render(self, turns: Sequence[Turn], *, add_generation_prompt: bool = True) -> str:
        """The conversation as text. Raises InvalidRequestError if the template refuses it."""
        try:
            return self._template.render(
                messages=list(turns), add_generation_prompt=add_generation_prompt, **self._special
            )
        except _FAILURES as error:
            raise InvalidRequestError(
                f"the model's chat template refuses the conversation: {error}"
            ) from error


def chat_template(checkpoint: Path) -> str:
    """The chat template of a checkpoint, from wherever transformers keeps it; of several the one
    called "default".

    Raises ModelUnavailableError if there is none.
    """
    own = checkpoint / "chat_template.jinja"
    if own.is_file():
        return _read(own)
    for name in ("chat_template.json", _TOKENIZER):
        if found := _default_of(_read_json(checkpoint / name).get("chat_template")):
            return found
    raise ModelUnavailableError(
        f"{checkpoint} has no chat template, which prompts are made with; add"
        " chat_template.jinja, which transformers' save_pretrained of the model's processor writes"
    )


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text in which special tokens are already written.

    Raises InvalidRequestError for a text that is none: with half of a surrogate pair.
    """
    try:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    except (UnicodeEncodeError, TypeError) as error:
        raise InvalidRequestError(
            f"the text cannot be encoded: {error}; leave out what is not a character"
        ) from error
    return ids


def _default_of(found: object) -> str | None:
    if isinstance(found, list):
        named = (one for one in found if isinstance(one, dict) and one.get("name") == "default")
        found = next(named, {}).get("template")
    return found if isinstance(found, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token and its like; each a text or a dict with one."""
    found = {}
    for name in (f"{kind}_token" for kind in _SPECIAL):
        value = config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[name] = content
    return found


def _read_json(file: Path) -> dict[str, Any]:
    """An object, empty if there is no such file. Raises ModelUnavailableError."""
    return read_object(file) if file.is_file() else {}


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelUnavailableError(f"{file} cannot be read: {error}") from error


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: jinja2's own would escape for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
