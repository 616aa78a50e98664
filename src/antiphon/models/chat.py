"""Conversations as token ids: a checkpoint's tokenizer and chat template, without transformers.

Neither torch nor vllm is imported here: entries run in the orchestrator's process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from antiphon.errors import InvalidRequestError, ModelUnavailableError
from antiphon.pipeline.detokenize import load_tokenizer

Turn = Mapping[str, Any]
"""One message as templates know it: `role`, and `content`, a text or a list of parts."""

_ANSWER = "\0"  # stands for an answer in a rendered conversation; no template writes it


class ChatFormat:
    """How a checkpoint wants its conversations written. Its constructor reads files.

    Raises ModelUnavailableError for a checkpoint without a tokenizer or a chat template.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._tokenizer = load_tokenizer(checkpoint)
        # The template is data that came with the model: it runs in jinja2's sandbox, with what
        # transformers' templates may use.
        sandbox = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        sandbox.filters["tojson"] = _to_json
        sandbox.globals["raise_exception"] = _refuse
        self._template = sandbox.from_string(chat_template(checkpoint))

    def prompt(self, turns: Sequence[Turn]) -> list[int]:
        """The conversation, and the beginning of its answer.

        Raises InvalidRequestError if the template refuses it.
        """
        return self.encode(self._render(turns))

    def continuation(self, turn: Turn) -> list[int]:
        """What the template puts after an answer, up to where the answer to `turn` begins.

        That is independent of the answer: the template closes one with a special token, at which
        the tokenizer always splits, and what the conversation began with is history already.
        """
        before = ({"role": "user", "content": ""}, {"role": "assistant", "content": _ANSWER})
        return self.encode(self._render([*before, turn]).partition(_ANSWER)[2])

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are already written."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _render(self, turns: Sequence[Turn]) -> str:
        try:
            return self._template.render(messages=list(turns), add_generation_prompt=True)
        except TemplateError as error:
            raise InvalidRequestError(
                f"the model's chat template refuses the conversation: {error}"
            ) from error


def chat_template(checkpoint: Path) -> str:
    """The chat template of a checkpoint, from wherever transformers keeps it.

    Raises ModelUnavailableError if there is none.
    """
    own = checkpoint / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        file = checkpoint / name
        if file.is_file():
            found = json.loads(file.read_text(encoding="utf-8")).get("chat_template")
            if isinstance(found, str):
                return found
    raise ModelUnavailableError(
        f"{checkpoint} has no chat template; add chat_template.jinja, which transformers'"
        " save_pretrained of the model's processor writes"
    )


def _to_json(value: object, indent: int | None = None) -> str:
    """As transformers has it: jinja2's own would escape for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
