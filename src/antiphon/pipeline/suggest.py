"""The nearest right name for a wrong one, as the end of an error message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean X?` if a known name is near, else `; known: a, b` (empty without any)."""
    names = sorted(known)
    near = difflib.get_close_matches(wrong.lower(), names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known: {', '.join(names)}" if names else ""
