"""The connectors by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from antiphon.connector.base import Connector
from antiphon.connector.inproc import InprocConnector
from antiphon.connector.shm import ShmConnector
from antiphon.errors import DeploymentError

CONNECTORS: Mapping[str, Callable[[str, int], Connector]] = {
    "inproc": InprocConnector,
    "shm": ShmConnector,
}


def make_connector(kind: str, run: str, max_bytes: int) -> Connector:
    """A connector of this kind for `run`, which may hold `max_bytes`.

    Raises DeploymentError for an unknown kind or a budget that is not positive, ConnectorError if
    the run cannot be joined.
    """
    factory = CONNECTORS.get(kind)
    if factory is None:
        near = difflib.get_close_matches(kind, CONNECTORS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(CONNECTORS)}."
        raise DeploymentError(f"There is no connector {kind!r}; {hint}")
    if max_bytes <= 0:
        raise DeploymentError(f"A connector's max_bytes must be positive, not {max_bytes}.")
    return factory(run, max_bytes)
