"""Which codes of a prompt are to be sounded when a stream of codes is decoded piece by piece.

    prompt of one chunk:   left context | new codes | right context
    index in the stream:                  ^ first

Only the new codes become sound; the context is what their sound depends on. Neither torch nor vllm
is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.errors import AdapterError

FIRST, LEFT, RIGHT = "first", "left", "right"
"""The keys of a window in `PoolingParams.extra_kwargs`."""


@dataclass(frozen=True, slots=True)
class CodeWindow:
    """Where the prompt lies in its stream, in codes. The default is a whole utterance.

    `first` is the stream index of the first new code, `left` and `right` are the context codes
    before and after the new ones.
    """

    first: int = 0
    left: int = 0
    right: int = 0


def check_window(first: int, left: int, right: int, num_codes: int) -> None:
    """Raises AdapterError unless a prompt of `num_codes` codes can be this window.

    A window without a new code is allowed; its sound has no samples.
    """
    if any(type(value) is not int or value < 0 for value in (first, left, right)):
        raise AdapterError(
            f"a window's first, left and right must be integers of at least 0, not {first!r},"
            f" {left!r}, {right!r}"
        )
    if left > first:
        raise AdapterError(
            f"a window whose first new code is number {first} cannot have {left} codes before it"
        )
    if left + right > num_codes:
        raise AdapterError(
            f"a prompt of {num_codes} codes cannot hold {left} and {right} codes of context"
        )


def window_of(extra: Mapping[str, Any] | None, num_codes: int) -> CodeWindow:
    """The window that a request's `extra_kwargs` describe; absent keys are 0.

    Never raises, since whoever decodes does so for the whole batch: a prompt whose window
    `check_window` refuses is a whole utterance.
    """
    first, left, right = ((extra or {}).get(key, 0) for key in (FIRST, LEFT, RIGHT))
    try:
        check_window(first, left, right, num_codes)
    except AdapterError:
        return CodeWindow()
    return CodeWindow(first, left, right)
