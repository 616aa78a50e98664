"""Everything that has state and was made for a test is checked when that test is over.

The shared factories report what they make. `tests/conftest.py` has `check` called after every test;
whatever lives longer, such as a folder's engines, is checked after each of that folder's tests.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar


class Checked(Protocol):
    """A store, or something that has stores."""

    def check_integrity(self) -> object:
        """Raise AssertionError if its state disagrees."""
        ...


T = TypeVar("T", bound=Checked)

_made: list[weakref.ref[Checked]] = []  # since the last test
_shared: weakref.WeakKeyDictionary[Checked, Callable[[], bool]] = weakref.WeakKeyDictionary()


def checked(thing: T) -> T:
    """Have this checked after the test that runs."""
    _made.append(weakref.ref(thing))
    return thing


def shared(thing: T, alive: Callable[[], bool]) -> T:
    """Have this checked after every test, as long as it is `alive`."""
    _shared[thing] = alive
    return thing


def let_be(thing: Checked) -> None:
    """A test has broken this for good."""
    _shared.pop(thing, None)


def check() -> None:
    """Check all. AssertionError for the first whose state disagrees."""
    made = [thing for ref in _made if (thing := ref()) is not None]
    _made.clear()
    for thing in made:
        thing.check_integrity()
    for thing, alive in list(_shared.items()):
        if alive():
            thing.check_integrity()
