"""A request's prompt where input comes from another stage or keeps arriving.

Pure functions only; applying the result to a request is the scheduler's.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.errors import AdapterError, EmptyInputError, InputTooLongError


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """A prompt made by an input adapter; replaces the placeholder of a gated request.

    `token_ids` always has the prompt's full length; with `rows_local` the worker holds an embedding
    row for each position and the ids are placeholders. `salt` is the conditioning's hash for the
    prefix cache (None: token ids say it all). `extra` reaches a generation stage's model in
    `PoolingParams.extra_kwargs`.
    """

    token_ids: tuple[int, ...]
    rows_local: bool = False
    salt: str | None = None
    extra: Mapping[str, bool | int | float | str] = field(default_factory=dict)


def validate_plan(
    plan: PromptPlan, max_model_len: int, max_tokens: int | None, vocab_size: int | None = None
) -> None:
    """Raise for a plan that cannot become a prompt.

    AdapterError for a prompt that no adapter may return (empty, ids that are not int, negative or
    not below `vocab_size`), InputTooLongError for one that does not fit. A stage that samples needs
    room for one token; `max_tokens` 0 says that it samples nothing, and the prompt may fill the
    length.
    """
    ids = plan.token_ids
    if not ids:
        raise AdapterError("The input adapter planned an empty prompt.")
    if any(type(token) is not int for token in ids):
        raise AdapterError("The input adapter planned token ids that are not of type int.")
    if min(ids) < 0 or (vocab_size is not None and max(ids) >= vocab_size):
        limit = "" if vocab_size is None else f" and below {vocab_size}"
        raise AdapterError(
            f"The input adapter planned token ids from {min(ids)} to {max(ids)}; "
            f"they must be 0 or larger{limit}."
        )
    _check_length(len(ids), max_model_len, samples=max_tokens != 0)


def salt_for(plan: PromptPlan, uid: str) -> str | None:
    """What salts the prefix-cache key: the uid for rows of unknown conditioning, never shared."""
    if plan.salt:
        return plan.salt
    return uid if plan.rows_local else None


class UpdateKind(enum.Enum):
    """How an update of a session changes its prompt."""

    EXTEND = "extend"  # append to what is there
    REPLACE = "replace"  # a new prompt; the cache is dropped
    WINDOW = "window"  # keep a tail of what is there and append to it


@dataclass(frozen=True, slots=True)
class PromptUpdate:
    """New input of a session. `keep` is the number of tokens that WINDOW keeps."""

    kind: UpdateKind
    token_ids: tuple[int, ...]
    keep: int = 0


@dataclass(frozen=True, slots=True)
class UpdatedPrompt:
    """A session's prompt after an update.

    Its first `reusable` tokens stand where they stood, so what has been computed of them holds.
    With `drop_cache` the request's blocks hold nothing of this prompt and must be freed.
    """

    token_ids: tuple[int, ...]
    reusable: int
    drop_cache: bool


def update_prompt(
    token_ids: Sequence[int], seen: int, update: PromptUpdate, max_model_len: int
) -> UpdatedPrompt:
    """The prompt of the next segment.

    `token_ids` are prompt and output so far. The first `seen` of them are the history: the prompt,
    also if part of it is still to be computed, and the output that was fed back. The last sampled
    token was not, so it is no part of the history: the model has not seen it. At least one token is
    left to compute, since otherwise the segment could not sample. Raises EmptyInputError if nothing
    is left, InputTooLongError if the result leaves no room to generate, ValueError for counts that
    cannot be.
    """
    if not 0 <= seen <= len(token_ids):
        raise ValueError(f"{seen} seen of {len(token_ids)} tokens")
    if update.keep < 0:
        raise ValueError(f"a window cannot keep {update.keep} tokens")
    history = tuple(token_ids[:seen])
    kept = _kept(history, update)
    result = kept + update.token_ids
    if not result:
        raise EmptyInputError("The update leaves the session without a prompt.")
    _check_length(len(result), max_model_len, samples=True)
    same_positions = len(kept) == len(history) and update.kind is not UpdateKind.REPLACE
    reusable = min(seen, len(result) - 1) if same_positions else 0
    return UpdatedPrompt(result, reusable, drop_cache=not same_positions)


def _kept(history: tuple[int, ...], update: PromptUpdate) -> tuple[int, ...]:
    match update.kind:
        case UpdateKind.EXTEND:
            return history
        case UpdateKind.REPLACE:
            return ()
        case UpdateKind.WINDOW:
            return history[max(0, len(history) - update.keep) :]


def _check_length(length: int, max_model_len: int, *, samples: bool) -> None:
    """Raise InputTooLongError for a prompt that does not fit."""
    if length + samples > max_model_len:
        raise InputTooLongError(
            f"The input has {length} tokens; the stage's model length is {max_model_len}"
            f"{', of which at least one must be left to generate' if samples else ''}."
        )
