"""What a soak has shown: each check with what it found and, in full, what is against it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

import msgspec

from antiphon.bench.soak_excuses import OWN_TIME, excuse, failed, fault_free
from antiphon.bench.soak_record import Called, FaultKind, Kind, Outcome, Process, Soak

OVER_DEADLINE_S = 2.0
TOLD_WITHIN_S = 2.0  # of a kill, those that were bound to what was killed
LETTING_GO_S = 4.0  # over the silence that is allowed: an abort, an interruption, a close
GROWTH_BYTES = 64 << 20  # of the tool's process, from the first quarter to the last


class Check(msgspec.Struct, frozen=True):
    """One thing that must hold. `against` is empty if it does."""

    name: str
    found: str
    against: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.against


class Recovery(msgspec.Struct, frozen=True):
    """How long a replica was away after faults of one kind, in seconds."""

    kind: str
    times: int
    median_s: float
    longest_s: float


def judge(soak: Soak) -> list[Check]:
    """All checks, in the order of the report."""
    checks: Sequence[Callable[[Soak], Check]] = (
        hang,
        availability,
        outcomes,
        recovery,
        bound_requests,
        answers,
        stages_at_rest,
        left_behind,
        own_process,
    )
    return [check(soak) for check in checks]


# --- calls ----------------------------------------------------------------------------------------


def hang(soak: Soak) -> Check:
    """Every call has its outcome in time, and letting go of one takes no longer than a silence.

    While the pipeline sleeps, an interruption of what waits itself has to wait.
    """
    most_s = soak.silence_s + LETTING_GO_S
    against = [f"{line(call)}: no outcome" for call in soak.calls if call.ended_s is None]
    worst = 0.0
    for call in _ended(soak.calls):
        over_s = _life_s(call) - call.deadline_s
        worst = max(worst, over_s)
        if over_s > OVER_DEADLINE_S or call.outcome is Outcome.HUNG:
            against.append(f"{line(call)}: it ended {over_s:.2f} s after its deadline")
        if call.letting_go_s - _asleep_s(call, soak) > most_s:
            against.append(f"{line(call)}: letting go of it took {call.letting_go_s:.1f} s")
    letting = max((call.letting_go_s for call in soak.calls), default=0.0)
    found = (
        f"{len(soak.calls)} calls; the latest end was {worst:.2f} s after its deadline, the longest"
        f" abort, interruption or close took {letting:.2f} s (limit {most_s:g} s)"
    )
    return Check("every call ends within its deadline + 2 s", found, tuple(against))


def availability(soak: Soak) -> Check:
    """A call fails only if something that it needs was unavailable while it ran."""
    broken = [call for call in failed(soak) if excuse(call, soak) is None]
    free = [call for call in soak.calls if counts(call) and fault_free(call, soak)]
    whole = sum(call.outcome is Outcome.WHOLE for call in free)
    share = whole / len(free) if free else 1.0
    found = (
        f"{whole} of {len(free)} calls whole ({share:.2%}) outside windows of unavailability;"
        f" {len(failed(soak)) - len(broken)} failed within"
    )
    return Check(
        "availability outside restart windows is 100 %", found, tuple(line(c) for c in broken)
    )


def outcomes(soak: Soak) -> Check:
    """One outcome each; an error names its stage; what is bad is refused."""
    against = []
    for call in soak.calls:
        if call.outcome is not None and call.outcome is not Outcome.HUNG and call.outcomes != 1:
            against.append(f"{line(call)}: {call.outcomes} outcomes")
        if call.outcome is Outcome.FAILED and call.code not in OWN_TIME and call.stage is None:
            against.append(f"{line(call)}: the error names no stage")
    against += [f"request {uid}: two outcomes" for uid in soak.remains.ended_twice]
    against += [f"request {uid}: no outcome" for uid in soak.remains.open_requests]
    against += soak.remains.broken
    errors = sum(call.outcome is Outcome.FAILED for call in soak.calls)
    found = f"{len(soak.calls)} calls, {errors} errors"
    return Check("one outcome each; every error names its stage", found, tuple(against))


def answers(soak: Soak) -> Check:
    """Whole answers are right."""
    whole = [call for call in soak.calls if call.outcome is Outcome.WHOLE]
    against = tuple(f"{line(c)}: {c.wrong}" for c in soak.calls if c.wrong is not None)
    found = f"{len(whole)} whole answers, their texts as before the first fault"
    return Check("whole answers are right", found, against)


# --- replicas -------------------------------------------------------------------------------------


def recovery(soak: Soak) -> Check:
    """Every replica that was hit serves again."""
    against = tuple(
        f"{window.kind} of {window.replica} at {window.began_s:.1f} s: it has not served again"
        for window in soak.windows
        if window.ended_s is None
    )
    times = ", ".join(
        f"{r.kind} {r.median_s:.1f} s (longest {r.longest_s:.1f} s, {r.times} times)"
        for r in recoveries(soak)
    )
    return Check("replicas that were hit serve again", times or "none was hit", against)


def recoveries(soak: Soak) -> list[Recovery]:
    """By kind of fault, from the fault on until the replica serves again."""
    found = []
    for kind in FaultKind:
        times = [w.ended_s - w.began_s for w in soak.windows if w.kind is kind and w.ended_s]
        if times:
            found.append(Recovery(kind, len(times), statistics.median(times), max(times)))
    return found


def away(soak: Soak) -> dict[str, float]:
    """The share of the time that each replica which was hit could not be counted on."""
    found: dict[str, float] = {}
    until: dict[str, float] = {}
    for window in sorted(soak.windows, key=lambda one: one.began_s):
        began_s = max(window.began_s, until.get(window.replica, 0.0))
        ended_s = soak.lasted_s if window.ended_s is None else min(window.ended_s, soak.lasted_s)
        if ended_s > began_s:
            share = (ended_s - began_s) / soak.lasted_s
            found[window.replica] = found.get(window.replica, 0.0) + share
            until[window.replica] = ended_s
    return dict(sorted(found.items()))


def bound_requests(soak: Soak) -> Check:
    """Calls that needed what was killed fail within 2 s of the kill."""
    delays = [(call, delay_s) for call in soak.calls if (delay_s := _told_after(call, soak))]
    against = tuple(
        f"{line(call)}: told {delay_s:.2f} s after the kill"
        for call, delay_s in delays
        if delay_s > TOLD_WITHIN_S
    )
    longest = max((delay_s for _, delay_s in delays), default=0.0)
    found = f"{len(delays)} calls failed by a kill, the last one {longest:.2f} s after it"
    return Check("calls bound to a killed stage fail within 2 s", found, against)


def _told_after(call: Called, soak: Soak) -> float | None:
    """Seconds from the kill that a call failed by to its outcome; None: it failed by none."""
    if call.outcome is not Outcome.FAILED or call.code != "stage_died" or call.ended_s is None:
        return None
    kills = [
        window.began_s
        for window in soak.windows
        if window.kind is FaultKind.KILL
        and window.stage == call.stage
        and call.replicas.get(window.stage) == window.number
        and call.began_s <= window.began_s <= call.ended_s
    ]
    return call.ended_s - max(kills) if kills else None


# --- what is left ---------------------------------------------------------------------------------


def stages_at_rest(soak: Soak) -> Check:
    """When nothing runs, no stage and no table of the router holds anything."""
    left = soak.remains
    against = [] if left.idle_error is None else [left.idle_error]
    against += [str(held) for held in left.held if not held.nothing]
    if left.running:
        against.append(f"the router has {left.running} requests")
    against += [f"stage {s} counts {n} requests" for s, n in left.admitted.items() if n]
    found = f"{len(left.held)} replicas asked: requests, blocks, payloads, integrity"
    return Check("nothing is held when all calls have ended", found, tuple(against))


def left_behind(soak: Soak) -> Check:
    """Nothing of the run is left on the machine after closing."""
    left = soak.remains
    against = [f"in shared memory: {name}" for name in left.files]
    against += [f"process {pid}" for pid in left.processes]
    found = (
        f"{len(left.files)} files in shared memory, {len(left.processes)} processes;"
        f" closing took {left.close_s:.1f} s"
    )
    return Check("nothing is left after closing", found, tuple(against))


def own_process(soak: Soak) -> Check:
    """The tool's process, which is the orchestrator's, is as it was."""
    before, after = soak.remains.before, soak.remains.after
    against: list[str] = []
    if before is not None and after is not None:
        against += _more("threads", before, after, lambda p: p.threads)
        against += _more("descriptors", before, after, lambda p: p.descriptors)
    early, late = quarters(soak)
    if late - early > GROWTH_BYTES:
        against.append(f"resident memory grew by {(late - early) / 2**20:.0f} MiB")
    found = f"resident memory {early / 2**20:.0f} MiB in the first quarter, {late / 2**20:.0f} MiB"
    return Check("the orchestrator's process is as it was", f"{found} in the last", tuple(against))


def quarters(soak: Soak) -> tuple[float, float]:
    """Median of resident bytes in the first quarter and in the last."""
    sizes = [sample.resident_bytes for sample in soak.samples]
    if not sizes:
        return 0.0, 0.0
    quarter = max(1, len(sizes) // 4)
    return statistics.median(sizes[:quarter]), statistics.median(sizes[-quarter:])


def _more(
    what: str, before: Process, after: Process, names: Callable[[Process], Sequence[str]]
) -> list[str]:
    """Names that come more often than before."""
    had, has = names(before), names(after)
    grown = {name for name in has if has.count(name) > had.count(name)}
    return [f"{what}: {has.count(n)} of {n}, {had.count(n)} before" for n in sorted(grown)]


# --- parts ----------------------------------------------------------------------------------------


def counts(call: Called) -> bool:
    """Whether a call counts for availability: its caller wanted an answer, and gave it time."""
    own = call.kind not in (Kind.BAD, Kind.HASTY)
    return own and call.outcome in (Outcome.WHOLE, Outcome.FAILED, Outcome.HUNG)


def line(call: Called) -> str:
    """A call, as a violation is told."""
    ended = "never" if call.ended_s is None else f"{call.ended_s:.2f}"
    where = ", ".join(f"{s}/{n}" if n else s for s, n in call.replicas.items()) or "no stage yet"
    text = f"{call.label} ({where}), {call.began_s:.2f} to {ended} s: {call.outcome or 'open'}"
    return text if call.code is None else f"{text}, {call.code}: {call.message}"


def _ended(calls: Iterable[Called]) -> list[Called]:
    return [call for call in calls if call.ended_s is not None]


def _asleep_s(call: Called, soak: Soak) -> float:
    """Seconds that the pipeline slept while the call ran or was let go of."""
    until_s = (soak.lasted_s if call.ended_s is None else call.ended_s) + call.letting_go_s
    both = ((max(a, call.began_s), min(b, until_s)) for a, b in soak.sleeps)
    return sum(max(0.0, end_s - begin_s) for begin_s, end_s in both)


def _life_s(call: Called) -> float:
    return (call.began_s if call.ended_s is None else call.ended_s) - call.began_s
