"""What the stages of a running voice pipeline hold."""

from __future__ import annotations

from antiphon import AsyncOmni

STAGES = ("hearing", "thinker", "talker", "code2wav")
EMPTY = dict.fromkeys(STAGES, (0, 0, 0, 0, 0))


async def idle(omni: AsyncOmni) -> dict[str, tuple[int, ...]]:
    """What every stage holds; all zero and every block free when nothing runs."""
    held = {}
    for name, report in (await omni.inspect()).items():
        used = report.total_blocks - 1 - report.free_blocks if report.total_blocks > 1 else 0
        held[name] = (
            report.requests,
            report.gated,
            used,
            report.worker_requests,
            report.connector_entries,
        )
    return held
