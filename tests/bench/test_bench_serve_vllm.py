"""Our server over vLLM's: the rounds with two servers over fake stages, the command with both."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from antiphon.bench.serve_answer import AnswerMeter, Ending
from antiphon.bench.serve_load import Run
from antiphon.bench.serve_process import ServerProcess, free_port
from antiphon.bench.serve_prompts import built_in
from antiphon.bench.serve_sse import Usage
from antiphon.bench.serve_vllm import (
    MODEL,
    Plan,
    Taken,
    measure,
    row_of,
    table,
    text_stage,
    vllm_server,
)
from antiphon.cli.main import main
from antiphon.env import with_variables
from antiphon.errors import InvalidRequestError, StageError, StageStartError
from antiphon.models.voice.topology import TOPOLOGY as VOICE
from antiphon.pipeline.defaults import fill_defaults
from antiphon.pipeline.deployment import Deployment
from fake_server import FAKE, FakeServer
from kv_pipelines import HALVES

PLAN = Plan(concurrency=(1, 4), rounds=2, requests=3, max_tokens=8, prompts=built_in())
NAMED = {"served_model_name": MODEL}


async def test_rounds_alternate_and_both_are_asked_the_same() -> None:
    said: list[str] = []
    with FakeServer(settings=NAMED) as ours, FakeServer(settings=NAMED) as other:
        one, four = await measure(ours.url, other.url, PLAN, said.append)
        for server in (ours, other):
            server.check_clean()
            # A warm-up and two rounds, of three calls, for each number of callers.
            assert len(server.stages["thinker"].commands) >= 2 * 3 * 3
    whose = [text.rpartition(", ")[2] for text in said]
    assert whose == ["ours", "vLLM's", "vLLM's", "ours", "ours", "vLLM's"] * 2
    assert said[0] == "1 at once, warm-up, ours"
    assert said[-1] == "4 at once, round 2 of 2, vLLM's"
    assert (one.concurrency, four.concurrency, one.requests) == (1, 4, 3)
    assert (one.same_text, len(one.ratios)) == (1.0, 2)
    assert one.prompt_tokens[0] == one.prompt_tokens[1] > 0


async def test_a_call_that_fails_ends_it() -> None:
    reason = pytest.raises(StageError, match="vLLM's server failed: HTTP 404")
    with FakeServer(settings=NAMED) as ours, FakeServer() as other, reason:
        await measure(ours.url, other.url, PLAN)


def a_round(token_s: float, text: str = "a") -> Run:
    """Four calls, one after the other, of ten tokens each."""
    answers = []
    for number in range(4):
        start_s = number * 10 * token_s
        meter = AnswerMeter(start_s)
        for token in range(1, 11):
            meter.text(text, start_s + token * token_s)
        meter.usage(Usage(5, 10))
        answers.append(meter.answer(Ending.COMPLETED, start_s + 10 * token_s))
    return Run(tuple(answers), 40 * token_s)


def test_ratios_are_medians_over_the_pairs() -> None:
    """One disturbed pair does not move them."""
    taken = Taken(8, [a_round(0.1), a_round(0.2), a_round(3.0)], [a_round(0.1)] * 3)
    row = row_of(taken)
    assert row.ratios == pytest.approx((1.0, 0.5, 1 / 30))
    assert row.tokens_ratio == pytest.approx(0.5)
    assert (row.ttft_ratio, row.itl_ratio) == pytest.approx((2.0, 2.0))
    assert row.ours_tokens_per_s == pytest.approx(5.0)
    assert row.vllm_itl_ms == pytest.approx(100.0)
    assert row.same_text == 1.0


def test_other_prompts_are_no_comparison() -> None:
    taken = Taken(8, [a_round(0.1)], [a_round(0.1, text="b")])
    row = row_of(taken)
    assert row.same_text == 0.0
    assert "prompts are the same" in str(table([row]).caption)
    answers = tuple(AnswerMeter(0.0).answer(Ending.COMPLETED, 1.0) for _ in range(4))
    taken.vllm = [Run((*a_round(0.1).answers[:3], answers[0]), 1.0)]
    assert "PROMPTS DIFFER" in str(table([row_of(taken)]).caption)


def test_the_stage_that_answers_in_text() -> None:
    assert text_stage(VOICE).name == "thinker"
    assert text_stage(FAKE).name == "thinker"
    with pytest.raises(InvalidRequestError, match="prefill, decode"):
        text_stage(HALVES)


def test_a_pipeline_that_cannot_be_compared_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "serve-vllm", "--pipeline", "split"]) == 2
    assert "stages prefill, decode" in capsys.readouterr().err


def test_vllms_server_has_what_the_stage_has(tmp_path: Path) -> None:
    settings = fill_defaults(FAKE, Deployment(pipeline="fake")).stages["thinker"]
    server = vllm_server(text_stage(FAKE), settings, tmp_path / "log")
    line = " ".join(server.arguments)
    assert f"--max-num-seqs {settings.max_num_seqs}" in line
    assert f"--kv-cache-memory-bytes {settings.kv_cache_bytes}" in line
    assert f"--dtype {settings.dtype}" in line
    assert server.environment["OMP_NUM_THREADS"] == str(settings.threads)


# --- processes ------------------------------------------------------------------------------------


async def test_a_server_that_ends_says_its_last_words(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)"]
    server = ServerProcess("a server", program, with_variables({}), free_port(), tmp_path / "log")
    with pytest.raises(StageStartError, match="a server has ended:\nno such model"):
        async with server:
            pass


async def test_a_server_is_ready_inside_and_gone_afterwards(tmp_path: Path) -> None:
    port = free_port()
    program = (
        "import http.server as h\n"
        "class Answer(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200 if self.path == '/health' else 404)\n"
        "        self.end_headers()\n"
        f"h.HTTPServer(('127.0.0.1', {port}), Answer).serve_forever()\n"
    )
    arguments = [sys.executable, "-c", program]
    server = ServerProcess("a server", arguments, with_variables({}), port, tmp_path / "log")
    async with server:
        os.kill(server.pid, 0)  # raises unless it is there
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_both_servers_answer_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Greedily, token for token. How fast is for the benchmark: this machine has other work."""
    path = tmp_path / "result.json"
    few = ["--rounds", "1", "--requests", "8", "--max-tokens", "16", "--concurrency", "4"]
    assert main(["bench", "serve-vllm", *few, "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["results"]
    assert row["same_text"] >= 0.75  # sums of other batches may tip a token
    assert row["prompt_tokens"][0] == row["prompt_tokens"][1] > 100
    assert "PROMPTS DIFFER" not in capsys.readouterr().out
