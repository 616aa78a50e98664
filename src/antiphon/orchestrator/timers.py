"""Something that is done later, unless it is cancelled before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is ordered."""

    def cancel(self) -> None:
        """Do not make it; harmless once it is made."""
        ...


Later = Callable[[float, Callable[[], None]], Timer]
"""Orders a call in so many seconds."""


def on_loop(seconds: float, call: Callable[[], None]) -> Timer:
    """`Later` of the running event loop."""
    return asyncio.get_running_loop().call_later(seconds, call)
