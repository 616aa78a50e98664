"""Settings that every test shares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import checked
import leftovers
from antiphon.testing.fault_table import FAULTS, Fault

# The caller's own settings must not reach a test. Where models are kept stays as it is.
for name in ("API_KEY", "INPUT_WAIT_TIMEOUT_S", "LOG_LEVEL", "SHM_DIR"):
    os.environ.pop(f"ANTIPHON_{name}", None)
leftovers.own_shared_memory()
# Every pipeline of a test checks its stages' stores after each step.
os.environ["ANTIPHON_CHECK_EVERY_STEP"] = "1"


@pytest.fixture(autouse=True)
def whole_afterwards() -> Iterator[None]:
    """What the shared factories made for a test has to be whole when the test is over."""
    yield
    checked.check()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers a folder is one worker's: its engines live there."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.split("/")[1]  # tests/FOLDER/...

    return ByFolder(config, log)


@pytest.fixture
def fault(request: pytest.FixtureRequest) -> Fault:
    """The row of the fault matrix that the test is marked with."""
    marker = request.node.get_closest_marker("fault")
    (row,) = marker.args
    return FAULTS[row]
