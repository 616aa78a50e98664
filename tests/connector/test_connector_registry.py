"""Connectors by name."""

from __future__ import annotations

import pytest

from antiphon.connector.base import Connector
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


class Bounded(InprocConnector):
    """A connector of somebody else's."""

    def __init__(self, run: str, max_bytes: int) -> None:
        super().__init__(run, max_bytes)
        self.made_with = (run, max_bytes)


def nothing_useful(run: str, max_bytes: int) -> object:
    return {run: max_bytes}


def three_arguments(run: str, max_bytes: int, more: int) -> Connector:
    raise NotImplementedError


NOT_CALLABLE = 7


def foreign(attribute: str, run: str) -> Connector:
    return make_connector(f"{__name__}:{attribute}", run, 100)


def test_a_connector_of_your_own_is_imported(run: str) -> None:
    connector = foreign("Bounded", run)
    try:
        assert isinstance(connector, Bounded)
        assert connector.made_with == (run, 100)
    finally:
        connector.close()


@pytest.mark.parametrize(
    "kind", ["antiphon.no_such_module:Connector", ":Connector", ".relative:Connector"]
)
def test_a_module_that_cannot_be_imported_is_named(kind: str, run: str) -> None:
    with pytest.raises(DeploymentError, match=f"is '{kind}', which cannot be imported"):
        make_connector(kind, run, 100)


@pytest.mark.parametrize("attribute", ["Nobody", ""])
def test_an_attribute_that_is_not_there_is_named(attribute: str, run: str) -> None:
    with pytest.raises(DeploymentError, match=f"{__name__} has no '{attribute}'"):
        foreign(attribute, run)


@pytest.mark.parametrize("attribute", ["NOT_CALLABLE", "pytest", "three_arguments"])
def test_what_cannot_be_called_with_run_and_bytes_is_refused(attribute: str, run: str) -> None:
    with pytest.raises(DeploymentError, match="must be callable with a run and max_bytes"):
        foreign(attribute, run)


def test_what_gives_no_connector_is_refused(run: str) -> None:
    with pytest.raises(DeploymentError, match="gave a dict; it must give a Connector"):
        foreign("nothing_useful", run)


def test_the_budget_of_a_foreign_connector_must_be_positive(run: str) -> None:
    with pytest.raises(DeploymentError, match="positive"):
        make_connector(f"{__name__}:Bounded", run, 0)
