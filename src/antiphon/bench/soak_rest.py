"""What a pipeline holds when nothing is to be alive."""

from __future__ import annotations

import asyncio
import time

from antiphon.bench.soak_process import process
from antiphon.bench.soak_record import Held, Soak
from antiphon.bench.soak_watch import Outcomes
from antiphon.errors import AntiphonError
from antiphon.orchestrator.omni import AsyncOmni
from antiphon.stage.messages import Inspection

_ANSWER_S = 10.0


async def look_at_rest(omni: AsyncOmni, outcomes: Outcomes, found: Soak, rest_s: float) -> None:
    """Fill in what there is before closing; the stages have `rest_s` to let go of everything."""
    left = found.remains
    limit = time.monotonic() + rest_s
    while True:
        left.idle_error, left.held = await _ask(omni)
        if left.idle_error is None and all(held.nothing for held in left.held):
            break
        if time.monotonic() > limit:
            break
        await asyncio.sleep(0.2)
    left.running = omni.num_running
    left.admitted = {stage: omni.admission.live(stage) for stage in found.replicas}
    left.open_requests = outcomes.open
    left.ended_twice = tuple(outcomes.twice)
    left.late_outputs = omni.late_outputs
    left.after = process()


async def _ask(omni: AsyncOmni) -> tuple[str | None, tuple[Held, ...]]:
    """What every replica holds, or why that could not be found out."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            inspections = await omni.inspect()
    except TimeoutError:
        return f"the stages have not said within {_ANSWER_S:g} s what they hold", ()
    except (AntiphonError, AssertionError) as error:  # a check has failed, or a stage is gone
        return f"{type(error).__name__}: {error}", ()
    return None, tuple(_held(name, found) for name, found in inspections.items())


def _held(name: str, found: Inspection) -> Held:
    used = found.total_blocks - 1 - found.free_blocks if found.total_blocks > 1 else 0
    return Held(
        name,
        found.requests,
        found.gated,
        used,
        found.worker_requests,
        found.connector_entries,
        found.integrity_failures,
    )
