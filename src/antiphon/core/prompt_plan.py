"""A request's prompt where input comes from another stage or keeps arriving: life and arithmetic.

    PLACEHOLDER ──plan──▶ CONDITIONED ──schedule──▶ IN_USE ──schedule──▶ IN_USE
                               ▲                      │
                               ╰─────── update ───────╯        any of them ──close──▶ CLOSED

A prompt in use is scheduled again for its next chunk and when it is resumed after preemption.
Everything here is a pure function; applying the result to a request is done in one place of the
scheduler.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.core.moves import move
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


class PromptState(enum.Enum):
    """Whose prompt the request carries."""

    PLACEHOLDER = "placeholder"  # stands for input that has not arrived; must not be computed
    CONDITIONED = "conditioned"  # the real prompt, not scheduled yet
    IN_USE = "in_use"  # at least one step has been scheduled with it
    CLOSED = "closed"  # the request is over


class PromptEvent(enum.Enum):
    """What can happen to a prompt."""

    PLAN = "plan"
    SCHEDULE = "schedule"
    UPDATE = "update"
    CLOSE = "close"


PROMPT_TRANSITIONS = {
    (PromptState.PLACEHOLDER, PromptEvent.PLAN): PromptState.CONDITIONED,
    (PromptState.CONDITIONED, PromptEvent.SCHEDULE): PromptState.IN_USE,
    (PromptState.IN_USE, PromptEvent.SCHEDULE): PromptState.IN_USE,
    (PromptState.CONDITIONED, PromptEvent.UPDATE): PromptState.CONDITIONED,
    (PromptState.IN_USE, PromptEvent.UPDATE): PromptState.CONDITIONED,
    (PromptState.PLACEHOLDER, PromptEvent.CLOSE): PromptState.CLOSED,
    (PromptState.CONDITIONED, PromptEvent.CLOSE): PromptState.CLOSED,
    (PromptState.IN_USE, PromptEvent.CLOSE): PromptState.CLOSED,
}


def advance(state: PromptState, event: PromptEvent, uid: str) -> PromptState:
    """The next state. IllegalMove: a prompt is planned once, a placeholder never scheduled."""
    return move(PROMPT_TRANSITIONS, state, event, f"Prompt of request {uid}")


def validate_plan(
    plan: PromptPlan, max_model_len: int, max_tokens: int | None, vocab_size: int | None = None
) -> int:
    """Check a plan and return the number of tokens that may be generated after it.

    `max_tokens` is clamped to what the model's length leaves; None asks for all of it, 0 says that
    the stage samples nothing, so that the prompt may fill the length. Raises AdapterError for a
    prompt that no adapter may return (empty, ids that are not int, negative or not below
    `vocab_size`), InputTooLongError for one that does not fit.
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
    return _room(len(ids), max_model_len, max_tokens)


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

    `kept_computed` tokens at its front are computed already. With `drop_cache` the request's blocks
    hold nothing of this prompt and must be freed.
    """

    token_ids: tuple[int, ...]
    kept_computed: int
    drop_cache: bool


def update_prompt(
    token_ids: Sequence[int],
    num_prompt: int,
    computed: int,
    update: PromptUpdate,
    max_model_len: int,
) -> UpdatedPrompt:
    """The prompt of the next segment.

    `token_ids` are prompt and output so far, `num_prompt` of them prompt, `computed` of them
    confirmed by the device. Output that was sampled but never computed is not part of the history:
    the model has not seen it. At least one token is left to compute, since otherwise the segment
    could not sample. Raises EmptyInputError if nothing is left, InputTooLongError if the result
    leaves no room to generate, ValueError for counts that cannot be.
    """
    if not (0 <= computed <= len(token_ids) and 0 <= num_prompt <= len(token_ids)):
        raise ValueError(f"{num_prompt} prompt, {computed} computed of {len(token_ids)} tokens")
    if update.keep < 0:
        raise ValueError(f"a window cannot keep {update.keep} tokens")
    history = tuple(token_ids[: max(num_prompt, computed)])
    kept = _kept(history, update)
    result = kept + update.token_ids
    if not result:
        raise EmptyInputError("The update leaves the session without a prompt.")
    _room(len(result), max_model_len, None)
    same_positions = len(kept) == len(history) and update.kind is not UpdateKind.REPLACE
    still_computed = min(computed, len(result) - 1) if same_positions else 0
    return UpdatedPrompt(result, still_computed, drop_cache=not same_positions)


def _kept(history: tuple[int, ...], update: PromptUpdate) -> tuple[int, ...]:
    match update.kind:
        case UpdateKind.EXTEND:
            return history
        case UpdateKind.REPLACE:
            return ()
        case UpdateKind.WINDOW:
            return history[max(0, len(history) - update.keep) :]


def _room(length: int, max_model_len: int, max_tokens: int | None) -> int:
    """Tokens that may follow a prompt of `length`. InputTooLongError if it does not fit."""
    room = max_model_len - length
    wanted = room if max_tokens is None else max_tokens
    if room < (0 if max_tokens == 0 else 1):
        raise InputTooLongError(
            f"The input has {length} tokens; the stage's model length is {max_model_len}"
            f"{'' if max_tokens == 0 else ', of which at least one must be left to generate'}."
        )
    return min(wanted, room)
