"""Writes the page of faults: `python -m antiphon.testing.fault_docs FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from antiphon.testing.fault_table import FAULTS_LIST, Fault, Level, Target

_HEAD = """\
# Faults

Generated from `src/antiphon/testing/fault_*.py` by `make docs`; do not edit. `antiphon faults`
prints it.

What goes wrong on a machine that serves, and what happens then. Each row has a test that provokes
the fault and reads from the row what it expects, so that the table and what is true cannot differ.

- **Who fails** are the requests that end with this error; all others go on. A request that needs a
  stage of which no process serves is refused at once, with `StageDiedError`; over HTTP that is 503
  with `Retry-After`. Each request has one outcome.
- **How fast** is the longest time from the fault to the error, or to the end of what it concerns,
  that the test allows. A setting is one of the deployment, see [deployment](deployment.md), unless
  something else is said. The outcome is told at most a second after its cause is known, also while
  a stage hangs.
- **Started again**: with a pause of `supervision.backoff_s`, twice as long after each further end,
  at most `supervision.restarts` times within `supervision.window_s`.
- **`/health`** is its word and the HTTP status meanwhile; before and after it is `ok, 200`. 503
  means that some kind of request cannot be answered now. Its body says how each replica is, why,
  and when it is started again.
- **What is left**, and in brackets where the test looks for it.

How a fault is provoked:

"""

_BEYOND = """\
## Many at once

The rows are one fault each. What several of them do together is tried in these ways:

- `tests/faults/test_faults_machine.py`: a hypothesis state machine over the real `AsyncOmni`
  and its supervision, with several replicas of fake stages: requests and sessions, chunks,
  stalls, errors, aborts, interruptions, sleep, wake, kill, restart, drain, close, at any moment
  and in any order. After every step no table disagrees, every request has at most one outcome,
  nobody is hurt by another's fault; in the end nothing is left. The slow test takes 100,000
  steps.
- `tests/faults/test_faults_leaks_*.py`: thousands of requests with 1 MiB payloads each that finish,
  fail, are refused and aborted, without garbage collection: what was theirs is gone at once.
- `antiphon bench soak`: the voice pipeline under random faults for a quarter of an hour, in
  [Soak](soak.md).
- [Field cases](field-cases.md): what went wrong elsewhere.
"""

_HOW = {
    Level.WIRE: "the real server, router and supervision; each stage is a real process that speaks"
    " the real messages and keeps real payloads in shared memory, without an engine behind it, so"
    " that it can be killed, stopped and made to lose messages by the dozen",
    Level.ENGINE: "vLLM's engine with a tiny model, in which something fails at a test's command",
    Level.PARTS: "the part concerned by itself",
    Level.VOICE: "the pipeline as it is served, with its models; among the slow tests",
}

_COLUMNS = ("fault", "who fails", "how fast", "started again", "`/health`", "what is left", "test")


def render() -> str:
    """The page as Markdown."""
    how = "".join(f"- *{level}*: {text}.\n" for level, text in _HOW.items())
    return _HEAD + how + "\n" + "\n".join(_section(target) for target in Target) + "\n" + _BEYOND


def _section(target: Target) -> str:
    rows = [fault for fault in FAULTS_LIST if fault.target is target]
    head = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    name = target[0].upper() + target[1:]
    return "\n".join([f"## {name}", "", *head, *map(_row, rows), ""])


def _row(fault: Fault) -> str:
    tests = "<br>".join(f"`{test}`" for test in fault.tests)
    cells = (
        f"`{fault.id}`: {fault.what}",
        who(fault, "`"),
        how_fast(fault, "`"),
        fault.restarted or "nothing",
        health(fault),
        f"{fault.left} ({fault.checked})",
        f"{tests}<br>({', '.join(fault.levels)})",
    )
    return f"| {' | '.join(cells)} |"


def who(fault: Fault, quote: str = "") -> str:
    """The requests that fail, and their error."""
    if fault.error is None:
        return fault.fails
    return f"{fault.fails}: {quote}{fault.error.__name__}{quote}"


def how_fast(fault: Fault, quote: str = "") -> str:
    """The time that it may take, in words."""
    after = ""
    if fault.after is not None:
        after = f"after {fault.after if ' ' in fault.after else f'{quote}{fault.after}{quote}'}"
    if fault.within_s is None:
        return after or ("at once" if fault.error else "-")
    return f"{fault.within_s:g} s {after}".rstrip()


def health(fault: Fault) -> str:
    """What `/health` says meanwhile, in words."""
    return "; then ".join(map(str, fault.health)) or "cannot be asked"


def main(arguments: list[str]) -> int:
    """Write the page to the file named by the one argument."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m antiphon.testing.fault_docs FILE\n")
        return 2
    Path(arguments[0]).write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
