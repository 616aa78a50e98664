"""The command line's small parts: signals, lines, files, tables, progress."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from antiphon.cli import signals
from antiphon.cli.lines import LineReader
from antiphon.cli.progress import StageProgress
from antiphon.cli.table import timings_table
from antiphon.core.continuity import ContinuityMeter
from antiphon.errors import StageStartError
from antiphon.orchestrator.api import StageTiming, Timings


@pytest.mark.parametrize("number", signals.STOPPING)
def test_signal_waits_for_the_clean_up(number: signal.Signals) -> None:
    """A second signal does not cut the clean-up short."""
    seen: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), number)
            for _ in range(5):  # turns of the loop in which the second signal is handled
                await asyncio.sleep(0)
            seen.append("clean")

    with signals.interruptible(), pytest.raises(signals.Interrupted) as caught:
        signals.run(work)
    assert seen == ["clean"]
    assert caught.value.exit_code == 128 + number


def test_signal_outside_the_loop() -> None:
    with signals.interruptible(), pytest.raises(signals.Interrupted):
        signal.raise_signal(signal.SIGTERM)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in signals.STOPPING]

    async def work() -> int:
        return 7

    with signals.interruptible():
        assert signals.run(work) == 7
    assert [signal.getsignal(number) for number in signals.STOPPING] == before


def test_cancellation_without_a_signal_is_no_interrupt() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with signals.interruptible(), pytest.raises(asyncio.CancelledError):
        signals.run(work)


async def lines_of(descriptor: int) -> AsyncIterator[str]:
    reader = LineReader(descriptor)
    while (line := await reader.line()) is not None:
        yield line


@given(st.text("ab é\n\r", max_size=30))
def test_lines_from_a_pipe(text: str) -> None:
    """What `str.split` on line ends gives, without blank lines."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb") as end:
        end.write(text.encode())
        end.close()

        async def collect() -> list[str]:
            return [line async for line in lines_of(reading)]

        assert asyncio.run(collect()) == [p.strip() for p in text.split("\n") if p.strip()]


async def test_lines_from_a_file(tmp_path: Path) -> None:
    """A file is no event source, and is read all the same."""
    file = tmp_path / "lines"
    file.write_text("one\n\n two \nthree")
    with file.open("rb") as source:
        assert [line async for line in lines_of(source.fileno())] == ["one", "two", "three"]


async def test_waiting_for_a_line_can_be_cancelled() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb"):
        waiting = asyncio.create_task(LineReader(reading).line())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not asyncio.get_running_loop().remove_reader(reading)


def test_table_of_timings() -> None:
    timings = Timings(
        total_s=2.0,
        ttft_s=0.25,
        ttfa_s=1.5,
        audio_s=4.0,
        stages={"thinker": StageTiming(queue_s=0.125, run_s=1.0, tokens=12)},
    )
    out = io.StringIO()
    Console(file=out, width=100).print(timings_table(timings))
    text = out.getvalue()
    assert "TTFT 0.25 s   TTFA 1.50 s   RTF 0.50   total 2.00 s   audio 4.00 s" in text
    row = [cell.strip() for cell in text.splitlines()[-2].strip("│ ").split("│")]
    assert row == ["thinker", "0.12", "1.00", "0.28", "12"]


def test_table_without_audio() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(timings_table(Timings(total_s=1.0, ttft_s=0.5)))
    assert out.getvalue().startswith("TTFT 0.50 s   total 1.00 s\n")
    assert "playback" not in out.getvalue()


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([(0.0, 1.0), (0.9, 1.0)], "continuous"),
        ([(0.0, 1.0), (1.09, 1.0)], "continuous"),  # too short to count
        ([(0.0, 1.0), (1.35, 1.0)], "worst gap 0.35 s (1 gap)"),
        ([(0.0, 1.0), (1.35, 1.0), (2.5, 1.0)], "worst gap 0.35 s (2 gaps)"),
    ],
)
def test_table_says_how_playback_went(chunks: list[tuple[float, float]], expected: str) -> None:
    meter = ContinuityMeter()
    for arrival_s, duration_s in chunks:
        meter.add(arrival_s, duration_s)
    timings = Timings(total_s=3.0, audio_s=2.0, continuity=meter.report())
    out = io.StringIO()
    Console(file=out, width=100).print(timings_table(timings))
    assert out.getvalue().splitlines()[1].rstrip() == f"playback: {expected}"


def progress_of(show: bool | None, *, verbose: bool = False) -> StageProgress:
    """By a clock that is read when it is made, entered and left."""
    return StageProgress(show, verbose=verbose, clock=iter((0.0, 1.0, 13.5)).__next__)


def test_progress_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each new phase, none for a repeat."""
    with progress_of(True) as progress:
        for stage, phase in (("a", "loading"), ("b", "loading"), ("a", "loading"), ("a", "ready")):
            thread = threading.Thread(target=progress, args=(stage, phase))
            thread.start()
            thread.join()
    shown = capsys.readouterr().err
    assert shown == "a: loading\nb: loading\na: ready\nstarted in 12.5 s\n"


def test_verbose_progress_is_lines_on_a_terminal_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stages' logs come between them, which bars that are drawn again would garble."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_of(None, verbose=True) as progress:
        progress("a", "loading")
    assert capsys.readouterr().err == "a: loading\nstarted in 12.5 s\n"


@pytest.mark.parametrize(
    ("show", "shown"), [(None, "a: ready after 9.0 s\nstarted in 12.5 s\n"), (False, "")]
)
def test_where_there_is_no_terminal_it_says_what_is_ready(
    show: bool | None, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_of(show) as progress:
        progress("a", "loading")
        progress("a", "ready after 9.0 s")
    assert capsys.readouterr() == ("", shown)


def test_a_start_that_fails_leaves_the_last_line_to_the_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(StageStartError), progress_of(None):
        raise StageStartError("no memory")
    assert capsys.readouterr() == ("", "")
