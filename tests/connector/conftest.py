"""What the connector tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from large_payloads import MIB, MakeLarge, Other, files

from antiphon.connector.base import Connector
from antiphon.connector.registry import CONNECTORS, make_connector
from antiphon.connector.runs import new_run_token, reclaim_dead_runs
from antiphon.connector.shm import ShmConnector

Make = Callable[..., Connector]


@pytest.fixture
def run() -> str:
    return new_run_token()


@pytest.fixture(params=sorted(CONNECTORS))
def make(request: pytest.FixtureRequest, run: str) -> Iterator[Make]:
    """Makes connectors of one run; all are checked and closed at the end."""
    made: list[Connector] = []

    def factory(max_bytes: int = 1 << 20) -> Connector:
        made.append(make_connector(request.param, run, max_bytes))
        return made[-1]

    yield factory
    for connector in made:
        connector.check_integrity()
        connector.close()


@pytest.fixture
def other(run: str) -> Iterator[Other]:
    made = Other(run)
    yield made
    made.kill()


@pytest.fixture
def make_shm(run: str) -> Iterator[MakeLarge]:
    """Connectors of one run in real shared memory; nothing may be left of it."""
    made: list[ShmConnector] = []

    def factory(max_bytes: int = 64 * MIB) -> ShmConnector:
        made.append(ShmConnector(run, max_bytes))
        return made[-1]

    yield factory
    for connector in made:
        connector.check_integrity()
        connector.close()
    reclaim_dead_runs()  # what a killed process has left
    assert files(run) == []
