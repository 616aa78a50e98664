"""What is called, and how: the same for all calls of a run."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from antiphon.bench.serve_prompts import Prompt


class Endpoint(enum.StrEnum):
    CHAT = "chat"
    SPEECH = "speech"
    REALTIME = "realtime"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What all calls of a run have in common."""

    url: str
    """The server's, without a path and a slash at its end."""
    model: str
    endpoint: Endpoint = Endpoint.CHAT
    modalities: tuple[str, ...] = ("text",)
    voice: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    ignore_eos: bool = False
    text_stage: str | None = None
    """Where `ignore_eos` belongs on a server of ours; None is vLLM's field of the body."""
    extra_body: dict[str, Any] = {}
    """Merged into every body, over what is in it."""
    api_key: str | None = None
    timeout_s: float = 600.0

    def longest(self, prompt: Prompt) -> int | None:
        """Tokens that the answer may have; None is the server's choice."""
        return self.max_tokens if prompt.max_tokens is None else prompt.max_tokens
