"""`/v1/audio/speech` with OpenAI's own client, with curl, and with a socket."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx2
import numpy as np
import openai
import pytest

from antiphon.errors import StageStepError
from antiphon.serve.sound_in import decode_now
from antiphon.testing.fake_stage import Answer
from fake_server import ANSWERS, BY_HAND, FAKE, FakeServer
from live_server import LiveServer
from sound_files import RATE, at_rate, likeness, sweep

SOUND = sweep()
URL = "/v1/audio/speech"


Connect = Callable[[FakeServer | LiveServer], openai.OpenAI]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Clients, which are closed at the end."""
    with contextlib.ExitStack() as opened:
        yield lambda server: opened.enter_context(
            openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
        )


def body(**given: object) -> dict[str, object]:
    return {"model": "fake", "input": "one two", "voice": "alloy", **given}


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    return found


class Call:
    """One call that is answered by hand: its units at the talker and at the vocoder."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self.talker, self.vocoder = server.stages["talker"], server.stages["code2wav"]
        (self.uid,) = server.wait_for(lambda: list(self.talker.live))

    def sound(self, samples: np.ndarray) -> None:
        """The next of its sound."""
        self._server.on_loop(lambda: self.talker.ref(self.uid, "codes", end=False))
        self._server.wait_for(lambda: self.vocoder.live)
        self._server.on_loop(lambda: self.vocoder.audio(self.uid, samples, finish=None))

    def end(self) -> None:
        self._server.on_loop(lambda: self.talker.ref(self.uid, "codes"))
        self._server.on_loop(lambda: self.talker.finish(self.uid))
        self._server.wait_for(lambda: self.vocoder.live)
        self._server.on_loop(lambda: self.vocoder.finish(self.uid))

    def fail(self) -> None:
        self._server.on_loop(lambda: self.vocoder.fail(self.uid, StageStepError("it fell over")))

    def acknowledge_abort(self) -> None:
        """Both stages are told to end it, and have."""
        for stage in (self.talker, self.vocoder):
            self._server.wait_for(lambda stage=stage: stage.pending_aborts or not stage.live)
            self._server.on_loop(stage.acknowledge)


@pytest.fixture
def hand() -> Iterator[FakeServer]:
    """A server whose stages do what a test says."""
    with FakeServer(answers=BY_HAND) as server:
        yield server
        server.check_clean()


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# --- OpenAI's client --------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_every_format(connect: Connect, hand: FakeServer, format: Any) -> None:
    def answer() -> None:
        call = Call(hand)
        for at in range(0, RATE, RATE // 5):
            call.sound(SOUND[at : at + RATE // 5])
        call.end()

    thread = in_background(answer)
    spoken = connect(hand).audio.speech.create(
        model="fake", input="one two", voice="alloy", response_format=format
    )
    thread.join(10)
    kind = {"mp3": "mpeg", "opus": "ogg"}.get(format, format)
    assert spoken.response.headers["content-type"] == f"audio/{kind}"
    assert spoken.response.headers["x-request-id"].startswith("speech-")
    if format == "pcm":
        back, rate = np.frombuffer(spoken.content, "<i2").astype(np.float32) / 32768, RATE
    else:
        clip = decode_now(spoken.content, max_s=10)
        back, rate = clip.array(), clip.sample_rate
    assert likeness(at_rate(back, rate, RATE), SOUND) > 0.98


def test_mp3_is_what_comes_unless_told_otherwise(connect: Connect, fake_server: FakeServer) -> None:
    spoken = connect(fake_server).audio.speech.create(model="fake", input="one", voice="nova")
    assert spoken.response.headers["content-type"] == "audio/mpeg"
    assert decode_now(spoken.content, max_s=10).seconds == pytest.approx(0.2, abs=0.1)


def test_sound_is_heard_before_its_end(connect: Connect, hand: FakeServer) -> None:
    calls: list[Call] = []

    def begin() -> None:
        calls.append(Call(hand))
        calls[0].sound(SOUND[:1200])

    thread = in_background(begin)
    create = connect(hand).audio.speech.with_streaming_response.create
    with create(model="fake", input="one", voice="alloy", response_format="pcm") as answer:
        thread.join(10)
        parts = answer.iter_bytes(chunk_size=2400)
        assert len(next(parts)) == 2400
        calls[0].sound(SOUND[1200:2400])
        assert len(next(parts)) == 2400
        calls[0].end()
        assert not list(parts)


def test_events(fake_server: FakeServer) -> None:
    with httpx2.stream(
        "POST",
        fake_server.url + URL,
        json=body(stream_format="sse", response_format="pcm", timeline=True),
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line]
    *deltas, done = events
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert len(b"".join(base64.b64decode(delta["audio"]) for delta in deltas)) == 2 * 4800
    assert done["type"] == "speech.audio.done"
    assert done["usage"] == {"input_tokens": 2, "output_tokens": 2, "total_tokens": 4}
    stages = {span["stage"] for span in done["antiphon"]["timeline"]["stages"]}
    assert stages == {"talker", "code2wav"}


def test_curl_takes_it_in_chunks(fake_server: FakeServer) -> None:
    options = [
        "-H",
        "content-type: application/json",
        "-d",
        json.dumps(body(response_format="wav")),
    ]
    command = ["curl", "-sS", "-i", "--no-buffer", *options, fake_server.url + URL]
    found = subprocess.run(command, capture_output=True, check=True)
    head, _, sound = found.stdout.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    assert decode_now(sound, max_s=10).seconds == pytest.approx(0.2)


# --- voices and other options -----------------------------------------------------------------


def params_of(server: FakeServer, stage: str = "talker") -> dict[str, Any]:
    (submit,) = [c for c in server.stages[stage].commands if type(c).__name__ == "Submit"]
    return dict(submit.params)


def test_a_voice_is_the_speaker(fake_server: FakeServer) -> None:
    answer = httpx2.post(fake_server.url + URL, json=body(voice={"id": "ada"}))
    assert answer.status_code == 200
    assert params_of(fake_server) == {"speaker": "ada"}


ONE_VOICE = replace(
    FAKE,
    entries=tuple(
        replace(e, params=("instruct",) if e.name == "speech" else ()) for e in FAKE.entries
    ),
)


def test_one_voice_has_all_of_openais_names() -> None:
    with FakeServer(topology=ONE_VOICE) as server:
        for voice in ("alloy", "default", None):
            answer = httpx2.post(server.url + URL, json=body(voice=voice))
            assert answer.status_code == 200
        answer = httpx2.post(server.url + URL, json=body(voice="ada"))
        assert answer.status_code == 400
        assert "one voice" in error_of(answer)["message"]


def test_instructions_where_somebody_follows_them(fake_server: FakeServer) -> None:
    answer = httpx2.post(fake_server.url + URL, json=body(instructions="Whisper."))
    assert (answer.status_code, error_of(answer)["param"]) == (400, "instructions")
    with FakeServer(topology=ONE_VOICE) as server:
        answer = httpx2.post(server.url + URL, json=body(instructions="Whisper."))
        assert answer.status_code == 200
        assert params_of(server) == {"instruct": "Whisper."}


def test_sampling_and_params(connect: Connect, fake_server: FakeServer) -> None:
    spoken = connect(fake_server).audio.speech.create(
        model="fake",
        input="one",
        voice="ada",
        extra_body={"sampling": {"talker": {"temperature": 0.5}}, "params": {"speaker": "eve"}},
    )
    assert spoken.content
    assert params_of(fake_server) == {"speaker": "eve"}


@pytest.mark.parametrize(
    ("given", "status", "code", "param", "says"),
    [
        ({"model": "other"}, 404, "model_not_found", "model", "this server has 'fake'"),
        ({"input": " "}, 400, "empty_input", None, "text is empty"),
        ({"input": "x" * 101}, 400, "input_too_long", "input", "at most 100"),
        ({"speed": 2.0}, 400, "unsupported_parameter", "speed", "leave it out"),
        ({"speed": 9}, 400, "invalid_parameter", "speed", "less than or equal to 4"),
        ({"response_format": "ogg"}, 400, "invalid_parameter", "response_format", "'opus'"),
        ({"speeed": 1}, 400, "unknown_parameter", "speeed", "did you mean speed?"),
        ({"sampling": {"talker": {"top_q": 1}}}, 400, "invalid_parameter", None, "top_p"),
        ({"params": {"mood": "x"}}, 400, "invalid_parameter", None, "mood"),
        ({"timeline": True}, 400, "invalid_parameter", "timeline", "/v1/antiphon/traces"),
    ],
)
def test_mistakes(
    given: dict[str, Any], status: int, code: str, param: str | None, says: str
) -> None:
    with FakeServer(settings={"max_text_chars": 100}) as server:
        answer = httpx2.post(server.url + URL, json=body(**given))
        found = error_of(answer)
        assert (answer.status_code, found["code"], found["param"]) == (status, code, param)
        assert says in found["message"]


def test_openais_client_raises_mistakes(connect: Connect, fake_server: FakeServer) -> None:
    with pytest.raises(openai.BadRequestError, match="text is empty"):
        connect(fake_server).audio.speech.create(model="fake", input="", voice="alloy")


def test_a_pipeline_that_speaks_nothing_as_it_is() -> None:
    chat = replace(FAKE, entries=FAKE.entries[:1])
    with FakeServer(topology=chat) as server:
        answer = httpx2.post(server.url + URL, json=body())
        assert (answer.status_code, error_of(answer)["code"]) == (400, "unsupported_endpoint")
        assert "it serves /v1/chat/completions" in error_of(answer)["message"]


def test_a_server_that_starts() -> None:
    with FakeServer(ready=False) as server:
        answer = httpx2.post(server.url + URL, json=body())
        assert (answer.status_code, error_of(answer)["code"]) == (503, "server_starting")
        assert int(answer.headers["retry-after"]) > 0


# --- what goes wrong on the way ---------------------------------------------------------------


def test_a_failure_before_the_first_sound_has_a_status(hand: FakeServer) -> None:
    def fail() -> None:
        call = Call(hand)
        hand.on_loop(lambda: call.talker.fail(call.uid, StageStepError("it fell over")))
        call.acknowledge_abort()

    thread = in_background(fail)
    answer = httpx2.post(hand.url + URL, json=body(), timeout=20)
    thread.join(10)
    assert (answer.status_code, error_of(answer)["code"]) == (500, "stage_step")


def test_a_text_that_no_sound_comes_of() -> None:
    with FakeServer(answers={**ANSWERS, "code2wav": Answer()}) as server:
        answer = httpx2.post(server.url + URL, json=body())
        assert (answer.status_code, error_of(answer)["code"]) == (500, "stage")
        assert "no sound" in error_of(answer)["message"]
        server.check_clean()


def test_a_deadline(hand: FakeServer) -> None:
    thread = in_background(lambda: Call(hand).acknowledge_abort())
    answer = httpx2.post(hand.url + URL, json=body(), headers={"x-deadline-s": "0.1"}, timeout=20)
    thread.join(10)
    assert (answer.status_code, error_of(answer)["code"]) == (504, "deadline_exceeded")


def test_an_abort_by_the_operator() -> None:
    with FakeServer(answers=BY_HAND, settings={"admin": True}) as server:
        calls: list[Call] = []

        def begin() -> None:
            calls.append(Call(server))
            calls[0].sound(SOUND[:1200])

        begun = in_background(begin)
        asked = body(stream_format="sse", response_format="pcm")
        with httpx2.stream("POST", server.url + URL, json=asked, timeout=20) as answer:
            begun.join(10)
            aborted = in_background(calls[0].acknowledge_abort)
            id = {"request_id": answer.headers["x-request-id"]}
            assert httpx2.post(server.url + "/admin/abort", json=id, timeout=20).status_code == 200
            aborted.join(10)
            last = [json.loads(line[6:]) for line in answer.iter_lines() if line][-1]
        assert last["error"]["code"] == "request_aborted"
        server.check_clean()


def raw_call(server: FakeServer, given: dict[str, object]) -> socket.socket:
    """A call over a plain socket: what is there is what the server has sent."""
    address = urlsplit(server.url)
    assert address.hostname is not None
    connection = socket.create_connection((address.hostname, address.port), timeout=20)
    data = json.dumps(given).encode()
    head = f"POST {URL} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def rest_of(connection: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def test_half_a_sound_does_not_look_like_a_whole(connect: Connect, hand: FakeServer) -> None:
    with raw_call(hand, body(response_format="wav")) as connection:
        call = Call(hand)
        call.sound(SOUND[:1200])
        start = connection.recv(1 << 16)
        assert start.startswith(b"HTTP/1.1 200")
        call.fail()
        call.acknowledge_abort()
        assert not (start + rest_of(connection)).endswith(b"0\r\n\r\n")

    def fail() -> None:
        call = Call(hand)
        call.sound(SOUND[:1200])
        call.fail()
        call.acknowledge_abort()

    thread = in_background(fail)
    with pytest.raises(openai.APIConnectionError):
        connect(hand).audio.speech.create(model="fake", input="one", voice="alloy")
    thread.join(10)


def test_a_failure_is_the_last_event(hand: FakeServer) -> None:
    def fail() -> None:
        call = Call(hand)
        call.sound(SOUND[:1200])
        call.fail()
        call.acknowledge_abort()

    thread = in_background(fail)
    answer = httpx2.post(
        hand.url + URL, json=body(stream_format="sse", response_format="pcm"), timeout=20
    )
    thread.join(10)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    assert [event.get("type") for event in events] == ["speech.audio.delta", None]
    assert events[-1]["error"]["code"] == "stage_step"


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
@pytest.mark.parametrize("heard", [False, True])
def test_who_goes_away_is_ended_on_every_stage(
    hand: FakeServer, stream_format: str, heard: bool
) -> None:
    connection = raw_call(hand, body(stream_format=stream_format, response_format="pcm"))
    call = Call(hand)
    if heard:
        call.sound(SOUND[:1200])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    connection.close()
    call.acknowledge_abort()
    hand.wait_for(lambda: not call.talker.live and not call.vocoder.live)


# --- the real pipeline ------------------------------------------------------------------------


def test_the_voice_pipeline_speaks(connect: Connect, voice_server: LiveServer) -> None:
    spoken = connect(voice_server).audio.speech.create(
        model="voice", input="Good morning. How are you?", voice="alloy", response_format="flac"
    )
    clip = decode_now(spoken.content, max_s=30)
    assert 1 < clip.seconds < 6
    assert float(np.sqrt(np.mean(clip.array() ** 2))) > 0.01


def test_nothing_to_speak(connect: Connect, voice_server: LiveServer) -> None:
    with pytest.raises(openai.BadRequestError, match="nothing to speak"):
        connect(voice_server).audio.speech.create(model="voice", input="...", voice="alloy")
