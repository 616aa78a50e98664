"""A stage's process that does not come up: one typed reason, nothing left of it."""

from __future__ import annotations

import queue
from pathlib import Path

from antiphon.core.options import ConnectorSpec
from antiphon.errors import AntiphonError, StageStartError
from antiphon.orchestrator.process import ProcessStage
from antiphon.pipeline.topology import StageKind
from antiphon.stage.spec import StageSpec


def test_a_process_that_ends_at_once_is_reported(tmp_path: Path) -> None:
    """Python itself fails here, perhaps before the spec has been sent to it."""
    spec = StageSpec(
        name="broken",
        kind=StageKind.AR,
        model=str(tmp_path),
        engine_args={},
        connector=ConnectorSpec("shm", "test"),
        environment={"PYTHONHOME": str(tmp_path / "nothing")},
    )
    gone: queue.SimpleQueue[tuple[str, AntiphonError]] = queue.SimpleQueue()
    stage = ProcessStage(spec, lambda *_: None, lambda name, why: gone.put((name, why)))
    try:
        name, why = gone.get(timeout=30)
    finally:
        stage.stop(5.0)
    assert name == "broken"
    assert isinstance(why, StageStartError)
    assert "ended with status 1 while it started" in str(why)
    stage.stop(5.0)  # harmless
