"""The servers that these tests share: one real voice pipeline, and one over fake stages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fake_server import FakeServer
from live_server import LiveServer


@pytest.fixture(scope="session")
def voice_server() -> Iterator[LiveServer]:
    """`antiphon serve` with the voice pipeline, every engine in a process of its own."""
    with LiveServer("--admin") as server:
        yield server


@pytest.fixture
def fake_server() -> Iterator[FakeServer]:
    """The server over stages that answer by themselves, at once."""
    with FakeServer() as server:
        yield server
        server.check_clean()
