"""The whole pipeline in whatever order things happen: one outcome each, and nothing left (I1-I4).

ANTIPHON_MACHINE_SEED chooses what the nightly run does; it prints the seed.
"""

from __future__ import annotations

import os
import secrets

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from pipeline_machine import PipelineMachine

EXAMPLES, STEPS = 2000, 50  # of the nightly run: 100,000 steps

SETTINGS = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class TestPipeline(PipelineMachine.TestCase):  # type: ignore[name-defined,misc]
    """C2, C5, C12: whatever ends some requests leaves the others alone, and none hangs."""

    settings = SETTINGS


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_night_of_everything() -> None:
    """The same, 100,000 steps long; each run is another unless a seed is given."""
    chosen = int(os.environ.get("ANTIPHON_MACHINE_SEED") or secrets.randbelow(1 << 32))
    print(f"ANTIPHON_MACHINE_SEED={chosen}")
    long = settings(
        SETTINGS,
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        database=None,
        phases=(Phase.generate, Phase.shrink),
    )
    run_state_machine_as_test(seed(chosen)(PipelineMachine), settings=long)
