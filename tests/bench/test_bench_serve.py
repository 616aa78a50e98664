"""The server benchmark over real sockets: the real server over fake stages, and others' answers."""

from __future__ import annotations

import ast
import asyncio
import functools
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from antiphon.bench.serve_answer import Answer, Ending
from antiphon.bench.serve_call import Call, Endpoint
from antiphon.bench.serve_client import Client
from antiphon.bench.serve_prompts import built_in
from antiphon.cli.main import main
from antiphon.stage.messages import Abort, Command, Submit
from antiphon.testing.fake_stage import FakeStage
from canned_server import canned_server, head
from fake_server import BY_HAND, FakeServer

PROMPT = built_in()[0]
SENTENCE_S = 0.2  # of sound that the fake stages give for a text of one sentence


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """Answers "one two three" at once; nothing may be left of any call."""
    with FakeServer() as server:
        yield server
        server.check_clean()


@pytest.fixture
def silent() -> Iterator[FakeServer]:
    """Never answers; its stages end what they are told to end."""

    def acknowledge(stage: FakeStage, command: Command) -> None:
        if isinstance(command, Abort):
            asyncio.get_running_loop().call_soon(stage.acknowledge)

    with FakeServer(answers=BY_HAND) as server:
        for stage in server.stages.values():
            stage.on_command = functools.partial(acknowledge, stage)
        yield server
        server.check_clean()


def bench(url: str, *arguments: str) -> int:
    return main(["bench", "serve", "--base-url", url, *arguments])


def saved(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


# --- a server of ours -----------------------------------------------------------------------------


def test_a_closed_loop_of_text(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    options = ("--num-prompts", "12", "--max-concurrency", "4", "--result-filename", str(path))
    assert bench(server.url, *options, "--save-detailed") == 0
    out = capsys.readouterr().out
    assert "============ Serving Benchmark Result ============" in out
    assert f"{'Successful requests:':<40} 12" in out
    assert " Audio Result " not in out
    found = saved(path)
    assert (found["completed"], found["failed"], found["model_id"]) == (12, 0, "fake")
    assert found["generated_texts"] == ["one two three"] * 12
    assert found["total_output_tokens"] == 36
    assert all(ttft > 0 for ttft in found["ttfts"])
    assert found["max_concurrent_requests"] <= 4
    assert found["request_rate"] == "inf"


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.SPEECH])
async def test_connections_are_used_again(server: FakeServer, endpoint: Endpoint) -> None:
    opened: list[str] = []

    async def on_open(*_: object) -> None:
        opened.append("one")

    tracing = aiohttp.TraceConfig()
    tracing.on_connection_create_end.append(on_open)
    call = Call(url=server.url, model="fake", endpoint=endpoint)
    async with Client(call, [tracing]) as client:
        for _ in range(5):
            assert (await client.ask(PROMPT)).ending is Ending.COMPLETED
    assert opened == ["one"]


def test_an_open_loop_of_text_and_sound(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    options = ("--num-prompts", "8", "--request-rate", "80", "--modalities", "text,audio")
    assert bench(server.url, *options, "--result-filename", str(path)) == 0
    out = capsys.readouterr().out
    for title in ("Text Result", "Audio Result", "Time to First Audio", "Real-time Factor"):
        assert title in out
    found = saved(path)
    assert found["completed"] == 8
    assert found["total_audio_s"] == pytest.approx(8 * SENTENCE_S)
    assert found["duration"] >= 0.09  # the last call is due after 8 / 80 s
    assert found["mean_rtf"] > 0
    assert "ttfts" not in found  # without --save-detailed


def test_speech(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    options = ("--endpoint", "speech", "--num-prompts", "5", "--max-concurrency", "2")
    assert bench(server.url, *options, "--result-filename", str(path)) == 0
    found = saved(path)
    assert (found["completed"], found["backend"]) == (5, "openai-speech")
    assert found["total_audio_s"] == pytest.approx(5 * SENTENCE_S)
    assert found["median_ttfa_ms"] > 0
    assert "median_ttft_ms" not in found


@pytest.mark.parametrize("modalities", ["text", "text,audio"])
def test_realtime(server: FakeServer, tmp_path: Path, modalities: str) -> None:
    path = tmp_path / "result.json"
    options = ("--endpoint", "realtime", "--num-prompts", "5", "--max-concurrency", "2")
    assert (
        bench(server.url, *options, "--modalities", modalities, "--result-filename", str(path)) == 0
    )
    found = saved(path)
    assert (found["completed"], found["backend"]) == (5, "openai-realtime")
    assert found["total_output_tokens"] == 15
    assert found["median_ttft_ms"] > 0
    heard_s = 5 * SENTENCE_S if "audio" in modalities else 0
    assert found["total_audio_s"] == pytest.approx(heard_s, abs=0.01)


def test_callers_that_leave_leave_nothing_behind(
    silent: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who does not leave would wait for ever."""
    path = tmp_path / "result.json"
    load = ("--num-prompts", "20", "--max-concurrency", "10")
    leave = ("--disconnect-rate", "1", "--disconnect-within-s", "0.3")
    assert bench(silent.url, *load, *leave, "--result-filename", str(path)) == 0
    assert f"{'Disconnected requests:':<40} 20" in capsys.readouterr().out
    found = saved(path)
    assert (found["completed"], found["failed"], found["disconnected"]) == (0, 0, 20)


def test_what_is_refused_is_counted_by_its_reason(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    options = ("--model", "other", "--num-prompts", "3", "--result-filename", str(path))
    assert bench(server.url, *options) == 1
    assert "HTTP 404: the model 'other' is not served here" in capsys.readouterr().out
    failures = saved(path)["failures"]
    assert list(failures.values()) == [3]


def test_a_call_that_does_not_end_fails_after_its_time(silent: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    options = ("--num-prompts", "2", "--timeout-s", "0.2", "--result-filename", str(path))
    assert bench(silent.url, *options) == 1
    assert saved(path)["failures"] == {"no end after 0.2 s": 2}


def test_the_key_is_sent_and_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    with FakeServer(settings={"api_key": "hidden-key"}) as server:
        options = ("--num-prompts", "2", "--result-filename", str(path))
        assert bench(server.url, *options, "--api-key", "hidden-key") == 0
        assert "hidden-key" not in path.read_text()
        monkeypatch.setenv("ANTIPHON_API_KEY", "hidden-key")
        assert bench(server.url, *options) == 0
        monkeypatch.delenv("ANTIPHON_API_KEY")
        assert bench(server.url, *options) == 2


def test_ignore_eos_reaches_the_stage_that_writes(server: FakeServer) -> None:
    assert bench(server.url, "--num-prompts", "1", "--ignore-eos", "--max-tokens", "5") == 0
    (submit,) = server.stages["thinker"].sent(Submit)
    assert submit.sampling["ignore_eos"] is True
    assert submit.sampling["max_tokens"] == 5


# --- results --------------------------------------------------------------------------------------


def vllm_keys() -> set[str]:
    """Of what `vllm bench serve` saves of a run, read in its source: importing it takes seconds."""
    vllm = importlib.util.find_spec("vllm")
    assert vllm is not None
    assert vllm.origin is not None
    source = (Path(vllm.origin).parent / "benchmarks" / "serve.py").read_text()
    dicts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Dict)]
    keys = [{key.value for key in node.keys if isinstance(key, ast.Constant)} for node in dicts]
    (found,) = (of for of in keys if {"duration", "ttfts", "request_goodput"} <= of)
    assigned = {
        node.slice.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "result_json"
        and isinstance(node.slice, ast.Constant)
    }
    return found | assigned


def test_a_result_has_vllms_keys(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    options = ("--num-prompts", "4", "--max-concurrency", "2", "--goodput", "ttft:9000")
    percentiles = ("--metric-percentiles", "50,99.9")
    bench(server.url, *options, *percentiles, "--result-filename", str(path), "--save-detailed")
    found = saved(path)
    # Of what it has and we do not: how a ramp goes, and sound that goes in.
    assert vllm_keys() - set(found) <= {
        "ramp_up_strategy",
        "ramp_up_start_rps",
        "ramp_up_end_rps",
        "rtfx",
    }
    for name in ("ttft", "tpot", "itl", "e2el"):
        for key in ("mean", "median", "std", "p50", "p99.9"):
            assert found[f"{key}_{name}_ms"] >= 0
    assert found["request_goodput"] == pytest.approx(found["request_throughput"])
    assert found["machine"]["cores"] >= 1


def test_a_result_is_named_as_vllm_names_it(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bench(server.url, "--num-prompts", "1", "--max-concurrency", "3", "--save-result") == 0
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("openai-chat-infqps-concurrency3-fake-")


# --- a server of another's ------------------------------------------------------------------------


def chunk(rest: str) -> bytes:
    return b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk",' + rest.encode() + b"}\n\n"


# As vLLM 0.32 sends it.
VLLM = [
    head("text/event-stream; charset=utf-8"),
    chunk(
        '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        '"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null'
    ),
    chunk('"choices":[{"index":0,"delta":{"content":"The"},"finish_reason":null}]'),
    chunk(
        '"choices":[{"index":0,"delta":{"content":" rivers"},"logprobs":null,'
        '"finish_reason":"length","stop_reason":null,"token_ids":null}]'
    ),
    chunk(
        '"choices":[],"usage":{"prompt_tokens":34,"total_tokens":36,"completion_tokens":2},'
        '"system_fingerprint":"vllm-0.32.0"'
    ),
    b"data: [DONE]\n\n",
]


async def ask(url: str, endpoint: Endpoint = Endpoint.CHAT) -> Answer:
    async with Client(Call(url=url, model="m", endpoint=endpoint)) as client:
        return await client.ask(PROMPT)


@pytest.mark.parametrize("cut", [False, True])
async def test_vllms_stream(cut: bool) -> None:
    """However it is cut into packets."""
    whole = b"".join(VLLM)
    pieces = [whole[at : at + 5] for at in range(0, len(whole), 5)] if cut else VLLM
    async with canned_server(pieces) as url:
        answer = await ask(url)
    assert (answer.ending, answer.text) == (Ending.COMPLETED, "The rivers")
    assert (answer.prompt_tokens, answer.output_tokens) == (34, 2)
    assert len(answer.itl_s) == 1


async def test_spoken_answers_as_openai_streams_them() -> None:
    pieces = [
        head("text/event-stream"),
        chunk('"choices":[{"index":0,"delta":{"audio":{"id":"a","transcript":"Hi"}}}]'),
        chunk('"choices":[{"index":0,"delta":{"audio":{"data":"' + "AAAA" * 800 + '"}}}]'),
        chunk(
            '"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":30,'
            '"completion_tokens_details":{"text_tokens":4,"audio_tokens":26}}'
        ),
        b"data: [DONE]\n\n",
    ]
    async with canned_server(pieces) as url:
        answer = await ask(url)
    assert answer.text == "Hi"
    assert answer.output_tokens == 4
    assert answer.audio_s == pytest.approx(0.05)


EVENTS = head("text/event-stream")
BROKEN: Mapping[str, tuple[list[bytes], str]] = {
    "cut off": ([EVENTS, VLLM[1], VLLM[2]], r"the stream ended before \[DONE\]"),
    "an error in the stream": (
        [EVENTS, VLLM[1], b'data: {"error":{"message":"out of\\nmemory","code":500}}\n\n'],
        "in the stream: out of memory",
    ),
    "an error of vLLM's": (
        [
            head("application/json", "404 Not Found"),
            b'{"error":{"message":"The model `m` does not exist.","type":"NotFoundError",'
            b'"param":"model","code":404}}',
        ],
        "HTTP 404: The model `m` does not exist.",
    ),
    "an error of a proxy's": ([head("text/html", "502 Bad Gateway"), b"<html>"], "HTTP 502: Bad"),
    "no stream": ([head("application/json"), b"{}"], "the answer is application/json"),
    "no JSON": ([EVENTS, b"data: {\n\n"], "not of a chat completion"),
    "no base64": (
        [EVENTS, chunk('"choices":[{"delta":{"audio":{"data":"?"}}}]')],
        "sound is not base64",
    ),
    "no HTTP": ([b"hello\r\n\r\n"], "Bad"),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_wrong_answer_is_a_failure_with_its_reason(case: str) -> None:
    pieces, reason = BROKEN[case]
    async with canned_server(pieces) as url:
        answer = await ask(url)
    assert answer.ending is Ending.FAILED
    assert re.search(reason, answer.error), answer.error
    assert "\n" not in answer.error


async def test_sound_that_is_cut_off_is_a_failure() -> None:
    """As servers end an answer that fails when it is under way: without its last chunk."""
    pieces = [head("audio/pcm", chunked=True), b"4\r\n\0\0\0\0\r\n"]
    async with canned_server(pieces) as url:
        answer = await ask(url, Endpoint.SPEECH)
    assert answer.ending is Ending.FAILED
    assert "not completed" in answer.error or "not enough data" in answer.error.lower()


async def test_speech_without_sound_is_a_failure() -> None:
    async with canned_server([head("audio/pcm")]) as url:
        answer = await ask(url, Endpoint.SPEECH)
    assert answer.error == "the answer has no sound"


# --- the command line -----------------------------------------------------------------------------

WRONG = {
    ("--request-rate", "0"): "not a positive number",
    ("--disconnect-rate", "1.5"): "not a number from 0 to 1",
    ("--metric-percentiles", "50,101"): "over 100",
    ("--percentile-metrics", "ttft,speed"): "'speed' is none of",
    ("--goodput", "itl:5"): "'itl' is none of",
    ("--extra-body", "[]"): "not an object",
    ("--extra-body", "{"): "not JSON",
    ("--modalities", "text,smell"): "'smell' cannot be measured",
    ("--duration-s", "1"): "give --max-concurrency",
    ("--result-filename", "/no/such/folder/a.json"): "does not exist",
    ("--dataset", "/no/such/file"): "cannot be read",
}


@pytest.mark.parametrize("options", WRONG)
def test_wrong_options_are_one_line_before_anything_is_sent(
    options: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", "--model", "m", "--port", "1", *options]) == 2
    err = capsys.readouterr().err
    assert WRONG[options] in err
    assert err.count("\n") == 1


def test_without_a_server_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--port", "1"]) == 2
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err


def test_a_server_without_the_model_is_named(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(server.url, "--model", "fakes", "--ignore-eos") == 2
    assert "did you mean fake?" in capsys.readouterr().err
