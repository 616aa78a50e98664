"""A checkpoint's chat template, rendered as transformers' `apply_chat_template` does it, without
transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from antiphon.errors import InvalidRequestError, ModelUnavailableError


class ChatTemplate:
    """The template of a folder: its chat_template.jinja, or the one in its tokenizer_config.json.

    Raises ModelUnavailableError if the folder has none.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer_config.json"
        try:
            config = json.loads(file.read_bytes()) if file.is_file() else {}
            separate = folder / "chat_template.jinja"
            source = separate.read_text("utf-8") if separate.is_file() else _default_of(config)
        except (OSError, ValueError) as error:
            raise ModelUnavailableError(f"{file} cannot be read: {error}") from error
        if not source:
            raise ModelUnavailableError(
                f"{folder} has no chat template, which prompts are made with; add its"
                " chat_template.jinja"
            )
        # the template is data that came with the model: it runs in jinja2's sandbox
        sandbox = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        sandbox.globals["raise_exception"] = _refuse
        sandbox.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        sandbox.filters["tojson"] = _to_json
        self._template = sandbox.from_string(source)
        self._tokens = _special_tokens(config)

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        """The conversation as text. Raises InvalidRequestError if the template refuses it."""
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **self._tokens
            )
        except TemplateError as error:
            raise InvalidRequestError(f"the model's chat template refuses: {error}") from error


def _default_of(config: Mapping[str, Any]) -> str:
    """One template, or the one called "default" of several."""
    found = config.get("chat_template") or ""
    if isinstance(found, list):
        found = {named["name"]: named["template"] for named in found}.get("default", "")
    return str(found)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token and its like, which templates use by name; each a text or a dict with one."""
    found = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
