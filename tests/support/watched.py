"""Things that must not outlive what they were made for."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

_watched: list[weakref.ref[Any]] = []


def watch(thing: Any) -> None:
    """Have `alive` tell of it; anything that weak references may refer to."""
    _watched.append(weakref.ref(thing))


def alive() -> list[str]:
    """The kinds of those that somebody still refers to, of all that have been watched since the
    last call.
    """
    found = [type(thing).__name__ for ref in _watched if (thing := ref()) is not None]
    _watched.clear()
    return found


@contextlib.contextmanager
def cycles() -> Iterator[list[str]]:
    """Afterwards, the kinds of our own things that only the garbage collector has found."""
    found: list[str] = []
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        kinds = (type(thing) for thing in gc.garbage)
        found += sorted({k.__name__ for k in kinds if k.__module__.startswith("antiphon.")})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No cycle is found meanwhile; what was watched before is forgotten."""
    alive()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
