"""Names in "module:attribute" form, as topologies and deployments write them."""

from __future__ import annotations

import importlib
from typing import Any

from antiphon.errors import AntiphonError, TopologyError


def load_target(target: str, what: str, error: type[AntiphonError] = TopologyError) -> Any:
    """The object that `target` names; `what` it is stands in the error if it is not there."""
    module_name, _, attribute = target.partition(":")
    try:
        return vars(importlib.import_module(module_name))[attribute]
    except (ImportError, KeyError, TypeError, ValueError) as cause:  # the last two: no such name
        # A KeyError's own text is the name alone.
        lacks = isinstance(cause, KeyError)
        reason = f"{module_name} has no {attribute!r}" if lacks else str(cause)
        raise error(f"{what} is {target!r}, which cannot be imported: {reason}") from None
