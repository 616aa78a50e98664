"""The connectors by name, and those that others bring along.

A connector of your own needs no registration: name it "package.module:attribute". What is found
there is called with the run's name and the most bytes it may hold, as the built-in ones are, and
gives a `Connector`; a subclass with such a constructor will do. It is imported in each stage's
process, so it must be installed there.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from antiphon.connector.base import Connector
from antiphon.connector.inproc import InprocConnector
from antiphon.connector.shm import ShmConnector
from antiphon.core.targets import load_target
from antiphon.errors import DeploymentError

CONNECTORS: Mapping[str, Callable[[str, int], Connector]] = {
    "inproc": InprocConnector,
    "shm": ShmConnector,
}


def make_connector(kind: str, run: str, max_bytes: int) -> Connector:
    """A connector of this kind for `run`, which may hold `max_bytes`.

    `kind` is a name of CONNECTORS or "package.module:attribute". Raises DeploymentError for a kind
    that is unknown, cannot be loaded or gives no connector, and for a budget that is not positive;
    ConnectorError if the run cannot be joined.
    """
    if max_bytes <= 0:
        raise DeploymentError(f"A connector's max_bytes must be positive, not {max_bytes}.")
    if ":" in kind:
        return _make_foreign(kind, run, max_bytes)
    factory = CONNECTORS.get(kind)
    if factory is None:
        near = difflib.get_close_matches(kind, CONNECTORS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(CONNECTORS)}."
        raise DeploymentError(f"There is no connector {kind!r}; {hint}")
    return factory(run, max_bytes)


def _make_foreign(kind: str, run: str, max_bytes: int) -> Connector:
    """The connector that "package.module:attribute" makes. Raises DeploymentError."""
    factory = load_target(kind, "the connector", DeploymentError)
    try:
        connector = factory(run, max_bytes)
    except TypeError as error:  # not callable, or with other arguments
        raise DeploymentError(
            f"Connector {kind!r} must be callable with a run and max_bytes: {error}."
        ) from error
    if not isinstance(connector, Connector):
        raise DeploymentError(
            f"Connector {kind!r} gave a {type(connector).__name__}; it must give a Connector."
        )
    return connector
