"""Names in "module:attribute" form."""

from __future__ import annotations

import pytest

from antiphon.core.targets import load_target
from antiphon.errors import AdapterError, TopologyError


def test_what_is_named_is_found() -> None:
    assert load_target("antiphon.errors:TopologyError", "it") is TopologyError


@pytest.mark.parametrize("target", ["no.such.module:X", "antiphon.errors", "", ":X", ".near:X"])
def test_a_name_that_leads_nowhere(target: str) -> None:
    with pytest.raises(TopologyError, match=f"the clock is '{target}', which cannot be imported"):
        load_target(target, "the clock")


def test_an_attribute_that_is_not_there() -> None:
    with pytest.raises(AdapterError, match=r"antiphon\.errors has no 'Nothing'"):
        load_target("antiphon.errors:Nothing", "the adapter of edge a", AdapterError)
