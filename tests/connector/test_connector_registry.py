"""Connectors by name."""

from __future__ import annotations

import pytest

from antiphon.connector.inproc import InprocConnector
from antiphon.connector.registry import make_connector
from antiphon.connector.shm import ShmConnector
from antiphon.errors import DeploymentError


@pytest.mark.parametrize(("kind", "cls"), [("inproc", InprocConnector), ("shm", ShmConnector)])
def test_the_kind_decides(kind: str, cls: type, run: str) -> None:
    connector = make_connector(kind, run, 100)
    assert isinstance(connector, cls)
    connector.close()


def test_a_kind_written_wrongly_names_the_nearest(run: str) -> None:
    with pytest.raises(DeploymentError, match="no connector 'inprc'; did you mean 'inproc'"):
        make_connector("inprc", run, 100)


def test_an_unknown_kind_lists_what_there_is(run: str) -> None:
    with pytest.raises(DeploymentError, match="there are inproc, shm"):
        make_connector("pigeon", run, 100)


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_the_budget_must_be_positive(run: str, max_bytes: int) -> None:
    with pytest.raises(DeploymentError, match="positive"):
        make_connector("inproc", run, max_bytes)
