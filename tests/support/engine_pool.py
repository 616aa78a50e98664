"""Engines that live for all tests of a folder.

Engines of one process share vLLM's process groups: shutting one down breaks the others, so all are
shut down together after the folder's last test.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_LAST_TEST_S = 300


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """While engines are made or ended: upstream collects garbage several times for each, each time
    over all that was imported. Once at the end will do.
    """
    collect = gc.collect
    gc.collect = lambda generation=2: 0
    try:
        yield
    finally:
        gc.collect = collect


class EnginePool:
    """Builds engines and keeps them alive. One per folder, which is that of its conftest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._closers: list[Callable[[], None]] = []

    def stage(self, spec: Any) -> Any:
        """A stage that a test steps by hand."""
        from tiny import Driven

        with uncollected():
            driven = Driven(spec)
        self.keep(driven.host.stop)
        return driven

    def keep(self, shutdown: Callable[[], None]) -> None:
        """Call `shutdown` with all others at the end."""
        self._closers.append(shutdown)

    def mark(self, items: list[pytest.Item]) -> None:
        """For `pytest_collection_modifyitems`."""
        # Upstream reads every attribute of torch.distributed when it builds its first engine.
        known = pytest.mark.filterwarnings(
            "ignore:`torch.distributed.reduce_op` is deprecated:FutureWarning"
        )
        # The folder's last test ends its engines. A test's own limit comes first.
        patient = pytest.mark.timeout(_LAST_TEST_S)
        for item in items:
            if self._folder in item.path.parents:
                item.add_marker(known)
                item.add_marker(patient)

    def after(self, nextitem: pytest.Item | None) -> None:
        """For `pytest_runtest_teardown`, as the last: a test's own fixtures may use an engine."""
        if nextitem is None or self._folder not in nextitem.path.parents:
            with uncollected():
                while self._closers:
                    self._closers.pop()()
