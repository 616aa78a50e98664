"""What the connector tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from antiphon.connector.base import Connector
from antiphon.connector.registry import CONNECTORS, make_connector
from antiphon.connector.runs import new_run_token

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
