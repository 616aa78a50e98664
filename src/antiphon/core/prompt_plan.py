"""The prompt that conditioning gives to a waiting request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """A prompt made by an input adapter; replaces the placeholder of a gated request.

    `token_ids` always has the prompt's full length; with `rows_local` the worker holds an embedding row for each
    position and the ids are placeholders. `salt` is the conditioning's hash for the prefix cache (None: token ids say
    it all).
    """

    token_ids: tuple[int, ...]
    rows_local: bool = False
    salt: str | None = None
