"""Real engines with shared memory between them leave nothing of 2,000 requests of 1 MiB."""

from __future__ import annotations

import pytest

from own_process import report_of
from source import TESTS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_left_of_thousands_of_requests() -> None:
    """C50, C82: they finish, fail and are aborted in turn, without the garbage collector."""
    report = report_of(TESTS / "support" / "leaking_engines.py")
    assert report["outlived"] == 0
    assert report["entries"] == report["files"] == 0
    assert report["growth"] < 4 << 20
