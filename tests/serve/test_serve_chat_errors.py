"""Chat that goes wrong: refusals, failures on the way, callers who go away or do not read."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI

from antiphon.errors import StageDiedError, StageStepError
from antiphon.stage.messages import Abort
from antiphon.testing.fake_stage import Answer
from chat_calls import (
    ASK,
    PATH,
    SOUND,
    begun,
    by_hand,
    events_of,
    meanwhile,
    openai_client,
    post,
    raw_call,
)
from fake_server import ANSWERS, FakeServer

BOTH = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module")
def one_server() -> Iterator[FakeServer]:
    """For all calls that come to nothing."""
    with FakeServer() as server:
        yield server
        server.check_clean()


def _ask(client: OpenAI, **given: Any) -> Any:
    return client.chat.completions.create(**{"model": "fake", "messages": ASK} | given)


# --- refused: always with a status, also where a stream was asked for -----------------------------


@BOTH
def test_a_model_that_is_not_there(fake_server: FakeServer, stream: bool) -> None:
    with openai_client(fake_server.url) as client, pytest.raises(openai.NotFoundError) as error:
        _ask(client, model="gpt", stream=stream)
    assert (error.value.code, error.value.param) == ("model_not_found", "model")


@BOTH
def test_a_key_that_is_wrong(stream: bool) -> None:
    with FakeServer(settings={"api_key": "secret"}) as server:
        with (
            openai_client(server.url, key="wrong") as client,
            pytest.raises(openai.AuthenticationError),
        ):
            _ask(client, stream=stream)
        with openai_client(server.url, key="secret") as client:
            assert _ask(client).choices


@BOTH
def test_a_server_that_has_not_started(stream: bool) -> None:
    with (
        FakeServer(ready=False) as server,
        openai_client(server.url) as client,
        pytest.raises(openai.InternalServerError) as error,
    ):
        _ask(client, stream=stream)
    assert (error.value.status_code, error.value.code) == (503, "server_starting")
    assert error.value.response.headers["retry-after"]


@BOTH
def test_a_stage_that_has_died(stream: bool) -> None:
    with FakeServer() as server, openai_client(server.url) as client:
        server.on_loop(lambda: server.stages["thinker"].die(StageDiedError("it fell")))
        with pytest.raises(openai.InternalServerError, match="it fell") as error:
            _ask(client, stream=stream)
    assert (error.value.status_code, error.value.code) == (503, "stage_died")


@BOTH
def test_more_than_may_wait(stream: bool) -> None:
    with by_hand(max_queued=0) as server, openai_client(server.url) as client:
        thinker = server.stages["thinker"]
        limit = server.on_loop(lambda: server.omni.admission.limit("thinker")) or 0
        body = {"model": "fake", "messages": ASK}
        with (
            httpx2.Client(base_url=server.url) as http,
            concurrent.futures.ThreadPoolExecutor(limit) as pool,
        ):
            calls = [pool.submit(http.post, PATH, json=body) for _ in range(limit)]
            server.wait_for(lambda: len(thinker.live) == limit)
            with pytest.raises(openai.RateLimitError) as error:
                _ask(client, stream=stream)
            server.on_loop(lambda: [thinker.finish(uid) for uid in list(thinker.live)])
            assert {call.result(10).status_code for call in calls} == {200}
    assert error.value.code == "overloaded"
    assert int(error.value.response.headers["retry-after"]) >= 1


@BOTH
def test_a_deadline(stream: bool) -> None:
    with by_hand() as server, openai_client(server.url) as client:
        with pytest.raises(openai.InternalServerError) as error:
            _ask(client, stream=stream, extra_headers={"x-deadline-s": "0.05"})
        assert (error.value.status_code, error.value.code) == (504, "deadline_exceeded")
        with pytest.raises(openai.BadRequestError, match="positive number"):
            _ask(client, stream=stream, extra_headers={"x-deadline-s": "soon"})


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"max_tokenz": 1}, "max_tokenz", "did you mean max_tokens?"),
        ({"audio": {"voise": "x", "format": "wav"}}, "voise", "did you mean voice?"),
        ({"logprobs": True}, "logprobs", "not supported"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"n": 2}, "n", "not supported"),
        ({"temperature": "warm"}, "temperature", "number"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"seed": 1 << 70}, "seed", "less than"),
        ({"stop": ["a"] * 5}, "stop", "at most 4"),
        ({"params": {"speaker": None}}, "params.speaker", "a text"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0", "'tool'"),
        ({"messages": [{"role": "assistant"}]}, "messages.0", "neither content nor audio"),
        ({"params": {"speeker": "x"}}, None, "did you mean speaker?"),
        ({"sampling": {"thinker": {"top_k": "x"}}}, None, "whole number"),
        ({"sampling": {"talker": {"top_k": 1}}}, None, "does not visit"),
        ({"messages": [{"role": "user", "content": " "}]}, None, "empty"),
    ],
)
@BOTH
def test_mistakes(
    one_server: FakeServer, given: dict[str, Any], param: str | None, words: str, stream: bool
) -> None:
    """Nothing is dropped: what could not take effect is refused, with its name."""
    answer = post(one_server, **given | ({"stream": True} if stream else {}))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert words in error["message"]


def test_options_of_a_stream_without_one(one_server: FakeServer) -> None:
    answer = post(one_server, stream_options={"include_usage": True})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stream_options"


def test_what_makes_no_difference_is_taken(fake_server: FakeServer) -> None:
    with openai_client(fake_server.url) as client:
        answer = _ask(
            client,
            user="me",
            metadata={"a": "b"},
            store=False,
            service_tier="auto",
            parallel_tool_calls=True,
            n=1,
            logprobs=False,
            tools=[],
            tool_choice="none",
            response_format={"type": "text"},
        )
    assert answer.choices[0].message.content == "one two three"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000, b"{}"])
def test_bodies_that_are_none(one_server: FakeServer, body: bytes) -> None:
    answer = httpx2.post(
        one_server.url + PATH, content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


# --- failed on the way ----------------------------------------------------------------------------


def test_a_failure_in_mid_stream() -> None:
    """C63: the error is the last event, and no sentinel of success follows it."""
    with by_hand() as server, meanwhile(lambda: post(server, stream=True)) as asking:
        uid, thinker = begun(server), server.stages["thinker"]
        server.on_loop(lambda: thinker.tokens(uid, 1))
        server.on_loop(lambda: thinker.fail(uid, StageStepError("it stumbled")))
        answer = asking.result(10)
    *chunks, last = events_of(answer)
    assert answer.status_code == 200
    assert [json.loads(c)["choices"][0]["delta"]["content"] for c in chunks] == ["", "one"]
    error = json.loads(last)["error"]
    assert (error["code"], error["type"]) == ("stage_step", "server_error")
    assert "it stumbled" in error["message"]


def test_the_client_raises_a_failure_in_mid_stream() -> None:
    with (
        by_hand() as server,
        openai_client(server.url) as client,
        meanwhile(lambda: list(_ask(client, stream=True, **SOUND))) as asking,
    ):
        uid, thinker = begun(server), server.stages["thinker"]
        server.on_loop(lambda: thinker.tokens(uid, 1))
        server.on_loop(lambda: thinker.die(StageDiedError("it fell")))
        with pytest.raises(openai.APIError, match="it fell"):
            asking.result(10)


def test_a_failure_before_the_first_word_is_a_status() -> None:
    with (
        by_hand() as server,
        openai_client(server.url) as client,
        meanwhile(lambda: _ask(client, stream=True)) as asking,
    ):
        uid, thinker = begun(server), server.stages["thinker"]
        server.on_loop(lambda: thinker.fail(uid, StageStepError("it stumbled")))
        with pytest.raises(openai.InternalServerError, match="it stumbled") as error:
            asking.result(10)
    assert error.value.status_code == 500


@pytest.mark.parametrize("words", [0, 1])
@BOTH
def test_an_abort(stream: bool, words: int) -> None:
    """An answer that was broken off does not pass for a whole one, nor is it asked for again."""
    mine = {"x-request-id": "mine-1"}
    with (
        by_hand(admin=True) as server,
        meanwhile(lambda: post(server, headers=mine, stream=stream)) as asking,
    ):
        uid, thinker = begun(server), server.stages["thinker"]
        server.on_loop(lambda: words and thinker.tokens(uid, 1))
        aborted = httpx2.post(server.url + "/admin/abort", json={"request_id": "mine-1"})
        assert aborted.status_code == 200
        answer = asking.result(10)
    if stream and words:
        assert answer.headers["x-request-id"] == "mine-1"
        error = json.loads(events_of(answer)[-1])["error"]
    else:
        assert answer.status_code == 499
        error = answer.json()["error"]
    assert error["code"] == "request_aborted"


def test_an_id_that_is_taken_or_is_none() -> None:
    """C87: who gives the id of a call that runs is told so; the call goes on."""
    mine = {"x-request-id": "mine-1"}
    with by_hand() as server, meanwhile(lambda: post(server, headers=mine)) as asking:
        uid, thinker = begun(server), server.stages["thinker"]
        second = post(server, headers=mine)
        assert (second.status_code, second.json()["error"]["code"]) == (409, "duplicate_request")
        wrong = post(server, headers={"x-request-id": "a b"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-request-id")
        server.on_loop(lambda: thinker.tokens(uid, 1, finish="stop"))
        assert asking.result(10).json()["id"] == "mine-1"


# --- callers who go away, or do not read ----------------------------------------------------------


@pytest.mark.parametrize("words", [0, 2])
@BOTH
def test_a_caller_who_goes_away(stream: bool, words: int, caplog: pytest.LogCaptureFixture) -> None:
    """C66: every stage is told, before the first word and later, and nobody logs an error."""
    with by_hand() as server:
        thinker = server.stages["thinker"]
        with raw_call(server, stream=stream, **SOUND) as raw:
            uid = begun(server)
            for token in range(words):
                server.on_loop(lambda token=token: thinker.tokens(uid, token + 1))
            if stream and words:
                assert raw.recv(12) == b"HTTP/1.1 200"
        for stage in server.stages.values():
            server.wait_for(lambda stage=stage: stage.sent(Abort))
        server.check_clean()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_client_that_closes_its_stream() -> None:
    with by_hand() as server, openai_client(server.url) as client:
        with meanwhile(lambda: _ask(client, stream=True)) as asking:
            uid = begun(server)
            server.on_loop(lambda: server.stages["thinker"].tokens(uid, 1))
            stream = asking.result(10)
        assert next(stream).choices
        stream.close()
        server.wait_for(lambda: server.stages["thinker"].sent(Abort))


def test_a_reader_who_does_not_read() -> None:
    """The connection is given up; meanwhile and afterwards others are answered."""
    answers = ANSWERS | {"code2wav": Answer(samples=(0.25,) * 3_000_000)}
    with FakeServer(answers=answers, settings={"write_timeout_s": 0.3}) as server:
        with raw_call(server, stream=True, **SOUND):
            server.wait_for(lambda: server.stages["code2wav"].commands)
            assert post(server).status_code == 200
            server.wait_for(lambda: server.service.open_calls == 0)
        assert post(server).status_code == 200
        server.check_clean()
