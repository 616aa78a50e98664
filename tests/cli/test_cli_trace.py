"""`antiphon trace` against a server with sockets, and the drawing by itself."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from antiphon.cli.main import main
from antiphon.cli.timeline import ARRIVAL, CROSS, FAILED, FIRST, PLAIN, QUEUE, RUN, WAIT, draw
from antiphon.env import API_KEY
from antiphon.observe.record import Timeline
from antiphon.observe.timelines import timeline_json
from commands import Antiphon
from records import VOICE, timelines
from trace_server import KEY, Server, trace_server

BARS = {WAIT, QUEUE, RUN, CROSS, FIRST, FAILED, ARRIVAL}


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's own key must not reach a test."""
    monkeypatch.delenv(API_KEY, raising=False)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with trace_server() as running:
        yield running


# --- the command ------------------------------------------------------------------------------


def test_the_command_draws_a_request(server: Server, antiphon: Antiphon) -> None:
    done = antiphon("trace", VOICE.id, "--url", server.url, settings={"COLUMNS": "100"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == draw(VOICE, 100)


def test_a_label_is_as_good_as_an_id(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    label = "a/b?c d%41 ü"
    server.timelines.ended(msgspec.structs.replace(VOICE, id="3fa80c221", label=label))
    assert main(["trace", label, "--url", server.url]) == 0
    assert label in capsys.readouterr().out


def test_json_is_what_the_server_says(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", VOICE.id, "--url", server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(timeline_json(VOICE)))


def test_without_an_id_the_latest_are_listed(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    failed = msgspec.structs.replace(
        VOICE, id="3fa80c222", label="[red]\x1b[31m", outcome="error", cause="payload", ttfa_s=None
    )
    server.timelines.ended(failed)
    assert main(["trace", "--url", server.url]) == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if "chat voice" in line]
    assert [row.split()[1] for row in (rows[0], rows[-1])] == ["[red]?[31m", "mine"]
    assert "failed (payload)" in rows[0]
    assert rows[-1].split()[-3:] == ["2.00s", "125ms", "750ms"]
    assert "\x1b" not in out


def test_what_is_listed_can_be_asked_for(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label that was used twice leads to the latest; the one before is listed by its id. Nothing
    is cut off on a narrow terminal.
    """
    monkeypatch.setenv("COLUMNS", "64")
    for number in range(2):
        again = msgspec.structs.replace(VOICE, id=f"again{number}", label="label-" * 12)
        server.timelines.ended(again)
    assert main(["trace", "--url", server.url, "--limit", "2"]) == 0
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= 64
    cells = "".join(line[11:].partition(" ")[0] for line in out.splitlines())
    assert f"{'label-' * 12}again0" in cells


def test_so_many_are_listed(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        server.timelines.ended(msgspec.structs.replace(VOICE, id=f"a{number}"))
    assert main(["trace", "--url", server.url, "--json", "--limit", "2"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in listed["data"]] == ["a2", "a1"]


def test_a_server_that_has_done_nothing(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--url", server.empty]) == 0
    assert capsys.readouterr().out == "no request has ended yet\n"


def test_the_right_key_opens(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", VOICE.id, "--url", server.locked, "--api-key", KEY, "--json"]) == 0
    assert VOICE.id in capsys.readouterr().out


def test_the_key_may_be_in_the_environment(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY, KEY)
    assert main(["trace", VOICE.id, "--url", server.locked, "--json"]) == 0
    assert VOICE.id in capsys.readouterr().out


# --- what goes wrong --------------------------------------------------------------------------


def failing(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and the one line."""
    code = main(["trace", *arguments])
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return code, line


def test_an_unknown_id(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failing(capsys, "nobody", "--url", server.url)
    assert code == 2
    assert "no request 'nobody' is kept" in line


@pytest.mark.parametrize("given", [[], ["--api-key", "wrong"]])
def test_a_wrong_key(server: Server, capsys: pytest.CaptureFixture[str], given: list[str]) -> None:
    code, line = failing(capsys, VOICE.id, "--url", server.locked, *given)
    assert code == 2
    assert "the API key is missing or wrong" in line
    assert "--api-key" in line


def test_a_key_that_cannot_be_sent(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failing(capsys, VOICE.id, "--url", server.url, "--api-key", "a\nb")
    assert code == 2
    assert "--api-key" in line


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, line = failing(capsys, "--url", f"http://127.0.0.1:{port}")
    assert code == 2
    assert "Connection refused" in line
    assert "antiphon serve" in line


def test_a_server_that_hangs_up(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            listening.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        code, line = failing(capsys, "--url", f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread.join()
    assert code == 2
    assert "no answer from" in line


def test_another_server(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failing(capsys, VOICE.id, "--url", f"{server.url}/other")
    assert code == 2
    assert "does not answer as `antiphon serve` does" in line


def test_a_server_that_fails(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failing(capsys, "--url", f"{server.url}/broken")
    assert code == 1
    assert "the server is draining" in line


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8000", "ftp://host", "http://", "http://h:x", "http://a b", "http://ü"]
)
def test_what_is_no_address(capsys: pytest.CaptureFixture[str], url: str) -> None:
    code, line = failing(capsys, f"--url={url}")
    assert code == 2
    assert "--url" in line


# --- the drawing ------------------------------------------------------------------------------


def bar_of(lines: list[str], name: str) -> str:
    """The bar in the row of a stage or edge, at a width without figures."""
    (line,) = [line for line in lines if line.startswith(f"{name} ")]
    return line[len("└ speech ") :]


def test_a_request_as_bars() -> None:
    lines = draw(VOICE, 41)  # 8 cells for names and 32 for 2 s
    axis = next(line for line in lines if line.lstrip().startswith("0 "))
    assert axis.split() == ["0", "0.5s", "1s", "1.5s"]
    assert bar_of(lines, "thinker") == QUEUE * 2 + FIRST + RUN * 10
    assert bar_of(lines, "talker") == WAIT * 4 + QUEUE * 4 + FIRST + RUN * 16
    assert bar_of(lines, "code2wav") == WAIT * 10 + QUEUE * 2 + FIRST + RUN * 19
    assert bar_of(lines, "└ speech") == " " * 4 + FIRST + CROSS * 16
    assert bar_of(lines, "sound").rstrip() == " " * 12 + f"{ARRIVAL}   {ARRIVAL}       {ARRIVAL}"


def test_with_room_there_are_figures() -> None:
    (talker,) = [line for line in draw(VOICE, 100) if line.startswith("talker")]
    assert talker.split()[-4:] == ["250ms", "250ms", "1.00s", "120"]
    (speech,) = [line for line in draw(VOICE, 100) if line.startswith("└ speech")]
    assert speech.split()[-2:] == ["1.00s", "4.1kB"]


def test_what_failed_is_marked_and_said() -> None:
    thinker, talker, code2wav = VOICE.stages
    lines = draw(
        msgspec.structs.replace(
            VOICE,
            outcome="error",
            cause="payload",
            message="the payload\nis corrupt",
            stages=(
                thinker,
                msgspec.structs.replace(talker, finish="error"),
                msgspec.structs.replace(code2wav, input_s=None, first_s=None, last_s=None),
            ),
        ),
        80,
    )
    assert "failed (payload) after 2.00s: the payload is corrupt" in lines
    (talker_line,) = [line for line in lines if line.startswith("talker")]
    (waiting,) = [line for line in lines if line.startswith("code2wav")]
    assert FAILED in talker_line
    assert set(waiting.split()[1]) == {WAIT}


@settings(max_examples=50, deadline=None)
@given(timelines(), st.integers(1, 250))
@example(VOICE, 80)
def test_any_request_fits_any_terminal(timeline: Timeline, width: int) -> None:
    lines = draw(timeline, width)
    assert all(cell_len(line) <= width for line in lines)
    assert all("\n" not in line and "\x1b" not in line for line in lines)
    for line in lines:
        line.translate(PLAIN)  # drawn without Unicode it has the same shape


@settings(max_examples=50, deadline=None)
@given(timelines(), st.integers(40, 250))
def test_every_stage_has_a_row_with_its_marks_between_its_ends(
    timeline: Timeline, width: int
) -> None:
    lines = draw(timeline, width)
    body = lines[lines.index("") + 2 :]  # below the axis
    edges = len({edge.edge for edge in timeline.edges})
    arrivals = bool(timeline.text_s) + bool(timeline.audio_s)
    rows = body[: len(timeline.stages) + edges + arrivals]
    shown = [row for row in rows if not row.startswith("└")][: len(timeline.stages)]
    for row, unit in zip(shown, timeline.stages, strict=True):
        assert row.startswith(unit.stage[:10])
        cells = "".join(c if c in BARS else " " for c in row)
        bar = cells.strip()
        assert bar, row
        assert " " not in bar, row
        assert (FIRST in bar) <= (unit.first_s is not None)
        if unit.first_s is not None and unit.finish != "error":
            assert FIRST in bar
        if unit.finish == "error":
            assert bar[-1] == FAILED
