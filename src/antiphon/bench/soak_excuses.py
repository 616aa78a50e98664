"""Whether a call had a reason to fail: something that it needs was unavailable. Pure."""

from __future__ import annotations

from antiphon.bench.soak_record import Called, FaultKind, Kind, Outcome, Soak, Window

OWN_TIME = frozenset({"deadline_exceeded", "late"})
"""Errors that any delay may bring about."""

_OF_FULL = frozenset({"connector", "payload"})
_AWAY = frozenset({FaultKind.DRAIN, FaultKind.RESTART})  # takes no requests, though it runs
_OF_LOSS = frozenset({"stage_died", "stage_start"})


def failed(soak: Soak) -> list[Called]:
    """Calls that gave an error, or none, and were not to."""
    return [call for call in soak.calls if call.outcome in (Outcome.FAILED, Outcome.HUNG)]


def excuse(call: Called, soak: Soak) -> str | None:
    """The reason that a call had to fail; None: it had none."""
    if call.outcome is Outcome.HUNG:
        return None
    windows = open_windows(call, soak)
    if call.code in OWN_TIME:
        return _excuse_of_time(call, windows, soak)
    if call.stage is None:
        return None
    windows = [window for window in windows if window.stage == call.stage]
    if call.code in _OF_FULL:
        windows = [window for window in windows if window.kind is FaultKind.FULL]
    elif call.code in _OF_LOSS:
        windows = [window for window in windows if window.kind in _AWAY or not window.survived]
    else:
        return None
    hit = {window.number for window in windows}
    if call.stage not in call.replicas and len(hit) < soak.replicas.get(call.stage, 1):
        return None  # another replica could have been chosen
    return _latest(windows) if windows else None


def _excuse_of_time(call: Called, windows: list[Window], soak: Soak) -> str | None:
    if call.kind is Kind.HASTY:
        return "its caller gave it little time"
    if windows:
        return _latest(windows)
    began_s, ended_s = _life(call)
    slept = any(a <= ended_s and b >= began_s for a, b in soak.sleeps)
    return "the pipeline slept" if slept else None


def _latest(windows: list[Window]) -> str:
    window = max(windows, key=lambda one: one.began_s)
    return f"{window.kind} of {window.replica}"


def fault_free(call: Called, soak: Soak) -> bool:
    """Whether all stages that a call needs could be counted on while it ran."""
    return not open_windows(call, soak)


def beside_a_window(call: Called, soak: Soak) -> bool:
    """Whether another replica of a stage that a call needs was unavailable while it ran."""
    return any(
        window.stage in call.stages
        and call.replicas.get(window.stage, window.number) != window.number
        and window.overlaps(*_life(call))
        for window in soak.windows
    )


def open_windows(call: Called, soak: Soak) -> list[Window]:
    """Windows of stages that a call needs, and of replicas that it may have had, while it ran."""
    return [
        window
        for window in soak.windows
        if window.stage in call.stages
        and call.replicas.get(window.stage, window.number) == window.number
        and window.overlaps(*_life(call))
    ]


def _life(call: Called) -> tuple[float, float]:
    return call.began_s, float("inf") if call.ended_s is None else call.ended_s
