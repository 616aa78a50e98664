"""A soak as a page in Markdown, introduction included: what `docs/soak.md` is."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from antiphon.bench.frame import command, heading
from antiphon.bench.soak_excuses import beside_a_window, excuse, failed, fault_free
from antiphon.bench.soak_judge import Check, away, counts, judge, quarters, recoveries
from antiphon.bench.soak_record import FaultKind, Outcome, Soak
from antiphon.errors import OutputPathError

_INTRODUCTION = """# Soak

A pipeline serves a random mix of callers while faults are injected into it every few seconds: stage
processes are killed, ended and stopped, shared memory counts as full, replicas are drained and
started again, the pipeline is put to sleep and woken, and callers abort, leave, interrupt and send
nonsense. Then it is asked whether every call ended in time, whether any failed that had no reason
to, and what is left. The whole page is written by the command below, `antiphon bench soak`, which
is described in [Benchmarks](benchmarks.md#a-pipeline-under-faults)."""

_MEANING = {
    FaultKind.KILL: "SIGKILL of a replica's process, also of one that starts",
    FaultKind.TERM: "SIGTERM of a replica's process",
    FaultKind.STOP: "SIGSTOP, then SIGCONT; some for longer than a silence may last",
    FaultKind.FULL: "the process can write to no file: for it shared memory is full",
    FaultKind.RESTART: "an operator has a replica drained and started again",
    FaultKind.DRAIN: "an operator drains a replica, and has it rejoin",
    FaultKind.SLEEP: "all stages sleep, and are woken",
    FaultKind.ABORT: "one more caller, whose call is aborted by its id",
    FaultKind.LEAVE: "one more caller, who stops listening",
    FaultKind.INTERRUPT: "one more session, with interruptions",
    FaultKind.BAD: "one more caller, with an input that has to be refused",
}


def report(soak: Soak, checks: Sequence[Check] | None = None) -> str:
    """The page; it ends with a line break."""
    checks = judge(soak) if checks is None else checks
    return "\n".join(_lines(soak, checks)) + "\n"


def save(path: Path, text: str) -> None:
    """Write the page. Raises OutputPathError if that is not possible."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputPathError(f"cannot write {path}: {error.strerror}") from error


def save_json(path: Path, soak: Soak, checks: Sequence[Check]) -> None:
    """Write everything that was found, every call and every fault. Raises OutputPathError."""
    content = {"soak": soak, "checks": checks, "command": command(), "machine": heading()}
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    except OSError as error:
        raise OutputPathError(f"cannot write {path}: {error.strerror}") from error


def verdict(checks: Sequence[Check]) -> str:
    """In one line."""
    wrong = sum(not check.holds for check in checks)
    return f"{wrong} of {len(checks)} checks failed" if wrong else f"all {len(checks)} checks hold"


def _lines(soak: Soak, checks: Sequence[Check]) -> Iterator[str]:
    yield _INTRODUCTION
    yield ""
    yield f"**Verdict: {verdict(checks)}.**"
    yield ""
    yield from _run(soak)
    yield from _checks(checks)
    yield from _faults(soak)
    yield from _calls(soak)
    yield from _availability(soak)
    yield from _away(soak)
    yield from _recoveries(soak)
    yield from _remains(soak)


def _run(soak: Soak) -> Iterator[str]:
    lasted = f"{soak.lasted_s:.0f} s"
    if soak.stopped_early:
        lasted += f" of {soak.planned_s:.0f} s: it was stopped"
    replicas = ", ".join(f"{n} of {name}" if n > 1 else name for name, n in soak.replicas.items())
    yield "```sh"
    yield command()
    yield "```"
    yield ""
    yield f"- On: {heading()}"
    yield f"- Pipeline {soak.pipeline}: {replicas}, each replica a process"
    yield f"- Lasted {lasted}; {soak.callers} callers at once; seed {soak.seed}"
    yield f"- A fault every {soak.every_s:g} s on average, the first after {soak.every_s:g} s"
    yield f"- A replica is ended after {soak.silence_s:g} s without a sign of life"
    yield f"- The orchestrator's event loop was late by {soak.lag_s:.2f} s at most"
    yield ""


def _checks(checks: Sequence[Check]) -> Iterator[str]:
    yield "## Checks"
    yield ""
    yield "| check | | found |"
    yield "|---|---|---|"
    for check in checks:
        yield f"| {check.name} | {'holds' if check.holds else '**fails**'} | {check.found} |"
    yield ""
    for check in checks:
        if check.against:
            yield f"Against *{check.name}*:"
            yield ""
            yield from (f"- {_cell(text)}" for text in check.against)
            yield ""


def _faults(soak: Soak) -> Iterator[str]:
    counted = Counter((f.kind, f.target) for f in soak.faults if f.injected)
    missed = Counter(f.note for f in soak.faults if not f.injected)
    yield "## Faults"
    yield ""
    yield "| fault | target | times | what it is |"
    yield "|---|---|---|---|"
    for kind in FaultKind:
        for (one, target), times in sorted(counted.items()):
            if one is kind:
                yield f"| {kind} | {target} | {times} | {_MEANING[kind]} |"
    yield ""
    total = sum(counted.values())
    skipped = "; ".join(f"{count} because {why}" for why, count in missed.items()) or "none"
    yield f"{total} injected. Not injected, though on the schedule: {skipped}."
    yield ""


def _calls(soak: Soak) -> Iterator[str]:
    kinds = sorted({call.kind for call in soak.calls})
    yield "## Calls"
    yield ""
    yield f"| kind | calls | {' | '.join(Outcome)} |"
    yield f"|---|---|{'---|' * len(Outcome)}"
    for kind in kinds:
        found = Counter(call.outcome for call in soak.calls if call.kind is kind)
        cells = " | ".join(str(found[outcome] or "") for outcome in Outcome)
        yield f"| {kind} | {found.total()} | {cells} |"
    total = Counter(call.outcome for call in soak.calls)
    cells = " | ".join(str(total[outcome] or "") for outcome in Outcome)
    yield f"| all | {total.total()} | {cells} |"
    yield ""
    yield from _failures(soak)


def _failures(soak: Soak) -> Iterator[str]:
    failures = failed(soak)
    if not failures:
        return
    found = Counter((c.code or "-", c.stage or "-", _reason(excuse(c, soak))) for c in failures)
    yield "| error | stage | because of | times |"
    yield "|---|---|---|---|"
    for (code, stage, why), times in found.most_common():
        yield f"| {code} | {stage} | {why} | {times} |"
    yield ""


def _reason(why: str | None) -> str:
    return "**no reason**" if why is None else why


def _availability(soak: Soak) -> Iterator[str]:
    counted = [call for call in soak.calls if counts(call)]
    free = [call for call in counted if fault_free(call, soak)]
    spared = [call for call in free if beside_a_window(call, soak)]
    yield "## Availability"
    yield ""
    yield "Of the calls whose callers wanted a whole answer and gave it time:"
    yield ""
    yield "| calls | number | whole |"
    yield "|---|---|---|"
    for name, calls in (
        ("all", counted),
        ("while all that they need could be counted on", free),
        ("of those: while another replica of a stage that they need was away", spared),
    ):
        whole = sum(call.outcome is Outcome.WHOLE for call in calls)
        yield f"| {name} | {len(calls)} | {f'{whole / len(calls):.2%}' if calls else '-'} |"
    yield ""


def _away(soak: Soak) -> Iterator[str]:
    shares = ", ".join(f"{replica} {share:.0%}" for replica, share in away(soak).items())
    yield f"Share of the time that replicas were away: {shares or 'none was'}."
    yield ""


def _recoveries(soak: Soak) -> Iterator[str]:
    yield "## Recovery"
    yield ""
    yield "From the fault until the replica serves again:"
    yield ""
    yield "| fault | windows | median s | longest s |"
    yield "|---|---|---|---|"
    for r in recoveries(soak):
        yield f"| {r.kind} | {r.times} | {r.median_s:.1f} | {r.longest_s:.1f} |"
    if soak.sleeps:
        times = [woken_s - began_s for began_s, woken_s in soak.sleeps]
        yield f"| sleep | {len(times)} | {statistics.median(times):.1f} | {max(times):.1f} |"
    yield ""


def _remains(soak: Soak) -> Iterator[str]:
    left = soak.remains
    early, late = quarters(soak)
    yield "## What is left"
    yield ""
    yield "| | |"
    yield "|---|---|"
    held = sum(1 for h in left.held if not h.nothing)
    yield f"| replicas that hold something at rest | {held} of {len(left.held)} |"
    yield f"| requests of the router at rest | {left.running} |"
    yield f"| outputs that belonged to nothing any more | {left.late_outputs} |"
    yield f"| files of the run after closing | {len(left.files)} |"
    yield f"| processes after closing | {len(left.processes)} |"
    yield (
        f"| resident memory of the orchestrator's process | {early / 2**20:.0f} MiB in the first"
        f" quarter, {late / 2**20:.0f} MiB in the last |"
    )
    before, after = left.before, left.after
    if before is not None and after is not None:
        yield f"| its threads | {len(before.threads)} before, {len(after.threads)} after |"
        had, has = len(before.descriptors), len(after.descriptors)
        yield f"| its descriptors | {had} before, {has} after |"


def _cell(text: str) -> str:
    return " ".join(text.split())
