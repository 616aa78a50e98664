"""`/v1/audio/transcriptions` with OpenAI's own client and with forms of all kinds."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx2
import hypothesis
import openai
import pytest
from hypothesis import strategies as st

from antiphon.errors import StageStepError
from antiphon.pipeline.topology import Edge, EdgeMode, Entry, Stage, StageKind
from antiphon.serve.sound_in import decode_now
from antiphon.stage.messages import Submit
from antiphon.testing.fake_stage import Answer
from fake_server import ANSWERS, BY_HAND, FAKE, FakeServer
from live_server import LiveServer
from sound_files import file_of, sweep

URL = "/v1/audio/transcriptions"
SOUND = file_of(sweep(), "libmp3lame", "mp3")
HEARING = Stage("hearing", StageKind.AR, "fake_server:checkpoint", output="transcript")
HEARS = replace(
    FAKE,
    stages=(HEARING, *FAKE.stages),
    edges=(
        Edge("hear", "hearing", "thinker", EdgeMode.FULL, "fake:Out", "fake:In", join=True),
        *FAKE.edges,
    ),
    entries=(
        *FAKE.entries,
        Entry(
            "transcribe",
            "hearing",
            "fake_server:WordsEntry",
            inputs=("audio",),
            params=("language",),
            outputs=("transcript",),
        ),
    ),
)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    answers = {**ANSWERS, "hearing": Answer(token_ids=(3, 4, 5))}
    with FakeServer(topology=HEARS, answers=answers) as server:
        yield server
        server.check_clean()


@pytest.fixture
def hand() -> Iterator[FakeServer]:
    """A server whose stages do what a test says."""
    with FakeServer(topology=HEARS, answers=BY_HAND) as server:
        yield server
        server.check_clean()


Connect = Callable[[FakeServer | LiveServer], openai.OpenAI]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Clients, which are closed at the end."""
    with contextlib.ExitStack() as opened:
        yield lambda server: opened.enter_context(
            openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
        )


def post(server: FakeServer, *, sound: bytes = SOUND, **fields: str) -> httpx2.Response:
    return httpx2.post(
        server.url + URL,
        data={"model": "fake", **fields},
        files={"file": ("speech.mp3", sound)},
        timeout=20,
    )


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# --- OpenAI's client --------------------------------------------------------------------------


def test_the_text(connect: Connect, server: FakeServer) -> None:
    heard = connect(server).audio.transcriptions.create(
        model="fake", file=("speech.mp3", SOUND), temperature=0.5, language="en"
    )
    assert heard.text == "three four five"
    assert heard.usage is not None
    assert heard.usage.type == "duration"
    assert heard.usage.seconds == pytest.approx(1.0, abs=0.1)
    (submit,) = server.stages["hearing"].sent(Submit)
    assert submit.params == {"language": "en"}
    assert submit.sampling is not None
    assert submit.sampling["temperature"] == 0.5


def test_the_text_alone(connect: Connect, server: FakeServer) -> None:
    heard = connect(server).audio.transcriptions.create(
        model="fake", file=("speech.mp3", SOUND), response_format="text"
    )
    assert heard == "three four five\n"


def test_events(connect: Connect, server: FakeServer) -> None:
    stream = connect(server).audio.transcriptions.create(
        model="fake", file=("speech.mp3", SOUND), stream=True
    )
    *deltas, done = list(stream)
    assert "".join(d.delta for d in deltas if d.type == "transcript.text.delta") == done.text
    assert done.type == "transcript.text.done"
    assert done.text == "three four five"
    assert done.usage is not None
    assert done.usage.output_tokens == 3


def test_text_comes_while_it_is_heard(connect: Connect, hand: FakeServer) -> None:
    hearing = hand.stages["hearing"]
    uids: list[str] = []

    def begin() -> None:
        uids.extend(hand.wait_for(lambda: list(hearing.live)))
        hand.on_loop(lambda: hearing.tokens(uids[0], 3))

    thread = in_background(begin)
    stream = connect(hand).audio.transcriptions.create(
        model="fake", file=("speech.mp3", SOUND), stream=True
    )
    events = iter(stream)
    first = next(events)
    thread.join(10)
    assert first.type == "transcript.text.delta"
    hand.on_loop(lambda: hearing.tokens(uids[0], 4, finish="stop"))
    assert [event.type for event in events][-1] == "transcript.text.done"


# --- forms ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code", "param", "says"),
    [
        ({"model": "other"}, "model_not_found", "model", "this server has 'fake'"),
        ({"response_format": "srt"}, "invalid_parameter", "response_format", "json or text"),
        ({"response_format": "jsonn"}, "invalid_parameter", "response_format", "did you mean json"),
        ({"temperature": "hot"}, "invalid_parameter", "temperature", "valid number"),
        ({"temperature": "nan"}, "invalid_parameter", "temperature", "finite"),
        ({"temperature": "2"}, "invalid_parameter", "temperature", "less than or equal to 1"),
        ({"prompt": "Names"}, "unsupported_parameter", "prompt", "leave it out"),
        ({"include[]": "logprobs"}, "unsupported_parameter", "include", "leave it out"),
        ({"timestamp_granularities[]": "word"}, "unsupported_parameter", None, "leave it out"),
        ({"temprature": "1"}, "unknown_parameter", "temprature", "did you mean temperature?"),
        ({"stream": "perhaps"}, "invalid_parameter", "stream", "boolean"),
    ],
)
def test_wrong_fields(
    server: FakeServer, fields: dict[str, str], code: str, param: str | None, says: str
) -> None:
    answer = post(server, **fields)
    found = answer.json()["error"]
    assert (answer.status_code, found["code"]) == (404 if "model" in fields else 400, code)
    assert param is None or found["param"] == param
    assert says in found["message"]


def test_fields_that_ask_for_nothing(server: FakeServer) -> None:
    answer = post(
        server, chunking_strategy="auto", stream="false", prompt="", response_format="json"
    )
    assert answer.status_code == 200


@pytest.mark.parametrize("sound", [b"", b"hello", SOUND[:50]])
def test_files_that_are_no_sound(server: FakeServer, sound: bytes) -> None:
    answer = post(server, sound=sound)
    found = answer.json()["error"]
    assert (answer.status_code, found["param"]) == (400, "file")


def test_too_long_a_sound() -> None:
    with FakeServer(topology=HEARS, settings={"max_audio_s": 0.5}) as server:
        found = post(server).json()["error"]
        assert (found["code"], found["param"]) == ("input_too_long", "file")


def test_too_large_a_form() -> None:
    with FakeServer(topology=HEARS, settings={"max_body_bytes": 1000}) as server:
        assert post(server).status_code == 413


def form(*parts: str) -> bytes:
    return "".join(f"--x\r\n{part}\r\n" for part in parts).encode() + b"--x--\r\n"


FIELD = 'content-disposition: form-data; name="{}"\r\n\r\n{}'
FILE = 'content-disposition: form-data; name="file"; filename="a"\r\n\r\nhello'


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        ("application/json", b"{}", "send it as multipart/form-data"),
        ("application/x-www-form-urlencoded", b"model=fake", "send it as multipart/form-data"),
        ("multipart/form-data", b"", "boundary"),
        ("multipart/form-data; boundary=x", b"", "file is missing"),
        ("multipart/form-data; boundary=x", b"--y\r\n", "cannot be read"),
        ("multipart/form-data; boundary=x", form("no-disposition: x\r\n\r\nx"), "cannot be read"),
        ("multipart/form-data; boundary=x", form(FIELD.format("model", "fake")), "file is missing"),
        ("multipart/form-data; boundary=x", form(FIELD.format("file", "hello")), "file is text"),
        ("multipart/form-data; boundary=x", form(FILE), "model is not right: Field required"),
        ("multipart/form-data; boundary=x", form(FILE, FILE), "Too many files"),
        (
            "multipart/form-data; boundary=x",
            form(*[FIELD.format("a", "b")] * 40),
            "Too many fields",
        ),
        ("multipart/form-data; boundary=x", form(FIELD.format("a", "b" * 70_000)), "maximum size"),
        (
            "multipart/form-data; boundary=x",
            form(FILE, *[FIELD.format("model", "fake")] * 2),
            "model is given twice",
        ),
        ("multipart/form-data; boundary=x; charset=a\0b", form(FILE), ""),
    ],
)
def test_wrong_forms(server: FakeServer, kind: str, body: bytes, says: str) -> None:
    headers = {"content-type": kind.replace("\0", "%00")}
    answer = httpx2.post(server.url + URL, content=body, headers=headers, timeout=20)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    with httpx2.Client() as client:
        yield client


@hypothesis.settings(
    max_examples=20, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(st.binary(max_size=500), st.integers(0, 300))
def test_broken_forms(server: FakeServer, client: httpx2.Client, noise: bytes, place: int) -> None:
    whole = form(FILE, FIELD.format("model", "fake"))
    place = min(place, len(whole))
    headers = {"content-type": "multipart/form-data; boundary=x"}
    broken = whole[:place] + noise + whole[place:]
    answer = client.post(server.url + URL, content=broken, headers=headers, timeout=20)
    assert answer.status_code in (400, 404)  # noise in the model's name makes another name
    assert answer.json()["error"]["message"]


def test_a_pipeline_that_does_not_hear(fake_server: FakeServer) -> None:
    found = post(fake_server).json()["error"]
    assert found["code"] == "unsupported_endpoint"
    assert "/v1/audio/speech" in found["message"]


# --- what goes wrong on the way ---------------------------------------------------------------


def test_a_failure_has_a_status_or_is_the_last_event(hand: FakeServer) -> None:
    hearing = hand.stages["hearing"]

    def fail(*tokens: int) -> None:
        (uid,) = hand.wait_for(lambda: list(hearing.live))
        if tokens:
            hand.on_loop(lambda: hearing.tokens(uid, *tokens))
        hand.on_loop(lambda: hearing.fail(uid, StageStepError("it fell over")))
        hand.wait_for(lambda: hearing.pending_aborts)
        hand.on_loop(hearing.acknowledge)

    for fields in ({}, {"stream": "true"}):
        thread = in_background(fail)
        answer = post(hand, **fields)
        thread.join(10)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "stage_step")
    thread = in_background(lambda: fail(3, 4))
    answer = post(hand, stream="true")
    thread.join(10)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    assert events[0]["type"] == "transcript.text.delta"
    assert events[-1]["error"]["code"] == "stage_step"


@pytest.mark.parametrize("stream", ["true", "false"])
def test_who_goes_away_is_ended(hand: FakeServer, stream: str) -> None:
    hearing = hand.stages["hearing"]
    asking = httpx2.Client()

    def ask() -> None:
        with pytest.raises(httpx2.TimeoutException):
            asking.post(
                hand.url + URL,
                data={"model": "fake", "stream": stream},
                files={"file": ("a", SOUND)},
                timeout=httpx2.Timeout(10, read=0.3),
            )
        asking.close()

    thread = in_background(ask)
    hand.wait_for(lambda: hearing.live)
    thread.join(10)
    hand.wait_for(lambda: hearing.pending_aborts)
    hand.on_loop(hearing.acknowledge)
    hand.wait_for(lambda: not hearing.live)


# --- the real pipeline ------------------------------------------------------------------------


def words(text: str) -> list[str]:
    return "".join(c for c in text.lower() if c.isalpha() or c == " ").split()


def test_the_voice_pipeline_hears_what_it_says(connect: Connect, voice_server: LiveServer) -> None:
    client = connect(voice_server)
    spoken = client.audio.speech.create(
        model="voice",
        input="The weather is nice today.",
        voice="alloy",
        response_format="opus",
    )
    assert decode_now(spoken.content, max_s=10).seconds > 1
    heard = client.audio.transcriptions.create(
        model="voice", file=("speech.ogg", io.BytesIO(spoken.content))
    )
    said: Any = {"the", "weather", "is", "nice", "today"}
    assert len(said & set(words(heard.text))) >= 3, heard.text
