"""`/v1/realtime` as the `openai` package uses it, over stages that answer by themselves."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace

import numpy as np
import pytest
from openai import AsyncOpenAI, OpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from antiphon.errors import StageDiedError
from antiphon.orchestrator.wav import pcm16
from antiphon.pipeline.topology import Ear, Edge, EdgeMode, Entry, Stage, StageKind
from antiphon.testing.fake_stage import Answer
from fake_server import ANSWERS, FAKE, FakeServer, WordsEntry
from realtime_caller import Hands, calling, until

SPOKEN = [
    "response.created",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_audio_transcript.delta",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.done",
]
WRITTEN = [
    "response.created",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.done",
]
SOUND = np.array(ANSWERS["code2wav"].samples, np.float32)


def seen(role: str | None = None) -> list[tuple[str, str, int]]:
    """Role, text and clips of each message that the newest request had."""
    messages = WordsEntry.seen[-1].messages
    return [(m.role, m.content, len(m.audio)) for m in messages if role in (None, m.role)]


async def test_a_spoken_answer(fake_server: FakeServer) -> None:
    async with calling(fake_server.url) as caller:
        response = await caller.ask("hello there")
        assert response["status"] == "completed"
        assert response["usage"]["output_tokens"] == 3
        (item,) = response["output"]
        assert item["content"] == [{"type": "output_audio", "transcript": "one two three"}]
        assert caller.types(response["id"]) == SPOKEN
        assert caller.pcm(response["id"]) == pcm16(SOUND)


async def test_a_written_answer(fake_server: FakeServer) -> None:
    async with calling(fake_server.url) as caller:
        await caller.set(output_modalities=["text"], instructions="Be brief.")
        response = await caller.ask("hello there")
        assert caller.types(response["id"]) == WRITTEN
        assert response["output"][0]["content"] == [
            {"type": "output_text", "text": "one two three"}
        ]
        assert seen() == [("system", "Be brief.", 0), ("user", "hello there", 0)]


async def test_turns_are_remembered_and_one_response_may_be_another(
    fake_server: FakeServer,
) -> None:
    async with calling(fake_server.url) as caller:
        for text in ("first", "second"):
            assert (await caller.ask(text))["status"] == "completed"
        assert [text for _, text, _ in seen()] == ["first", "one two three", "second"]
        await caller.connection.response.create(
            response={"conversation": "none", "output_modalities": ["text"], "input": []}
        )
        assert (await caller.done())["status_details"]["error"]["code"] == "empty_input"
        await caller.connection.response.create(
            response={"output_modalities": ["text"], "max_output_tokens": 2}
        )
        assert (await caller.done())["status"] == "completed"


async def test_speech_is_heard_where_the_model_hears(fake_server: FakeServer) -> None:
    async with calling(fake_server.url) as caller:
        audio = base64.b64encode(bytes(24_000)).decode()
        for _ in range(2):
            await caller.connection.input_audio_buffer.append(audio=audio)
        await caller.connection.input_audio_buffer.commit()
        told = await caller.until("conversation.item.done")
        assert told[0]["type"] == "input_audio_buffer.committed"
        await caller.connection.response.create()
        assert (await caller.done())["status"] == "completed"
        assert seen() == [("user", "", 1)]
        assert WordsEntry.seen[-1].messages[0].audio[0].seconds == 1.0
        await caller.connection.conversation.item.retrieve(item_id=told[-1]["item"]["id"])
        (retrieved,) = await caller.until("conversation.item.retrieved")
        assert len(base64.b64decode(retrieved["item"]["content"][0]["audio"])) == 48_000
        await caller.connection.input_audio_buffer.append(audio=audio)
        await caller.connection.input_audio_buffer.clear()
        await caller.until("input_audio_buffer.cleared")
        error = await caller.error("input_audio_buffer.commit")
        assert error["code"] == "input_audio_buffer_commit_empty"
        refused = await caller.set(audio={"input": {"transcription": {"model": "whisper-1"}}})
        assert "writes nothing down" in refused["error"]["message"]


HEAR = Edge("hear", "hearing", "thinker", EdgeMode.FULL, "sample:Heard", "sample:Hear", join=True)
EARED = replace(
    FAKE,
    stages=(
        Stage("hearing", StageKind.AR, "fake_server:checkpoint", output="transcript"),
        *FAKE.stages,
    ),
    edges=(HEAR, *FAKE.edges),
    entries=(
        replace(FAKE.entries[0], ear=Ear("hearing", "fake_server:WordsEntry")),
        Entry(
            "transcribe",
            "hearing",
            "fake_server:WordsEntry",
            inputs=("audio",),
            outputs=("transcript",),
        ),
    ),
)


async def test_speech_is_written_down_once_where_an_ear_does_it() -> None:
    answers = {**ANSWERS, "hearing": Answer(token_ids=(7,))}
    with FakeServer(topology=EARED, answers=answers) as server:
        async with calling(server.url) as caller:
            await caller.set(audio={"input": {"transcription": {"model": "whisper-1"}}})
            audio = base64.b64encode(bytes(48_000)).decode()
            await caller.connection.input_audio_buffer.append(audio=audio)
            await caller.connection.input_audio_buffer.commit()
            await caller.connection.response.create()
            assert (await caller.done())["status"] == "completed"
            assert seen() == [("user", "seven", 0)]
            (heard,) = [e for e in caller.events if "transcription" in e["type"]]
            assert heard["transcript"] == "seven"
            assert heard["usage"] == {"type": "duration", "seconds": 1.0}
        server.check_clean()


async def test_mistakes_leave_the_conversation_as_it_is(fake_server: FakeServer) -> None:
    async with calling(fake_server.url) as caller:
        for type_, fields, code in (
            ("response.cancel", {}, "response_cancel_not_active"),
            ("session.update", {"session": {"type": "realtime", "colour": 1}}, "unknown_parameter"),
            (
                "conversation.item.create",
                {"item": {"type": "message"}},
                "missing_required_parameter",
            ),
            ("nothing.known", {}, "unknown_event_type"),
        ):
            assert (await caller.error(type_, **fields))["code"] == code
        await caller.connection.send_raw(b"\x00\x01")
        assert (await caller.next())["error"]["code"] == "invalid_json"
        await caller.connection.output_audio_buffer.clear()
        assert (await caller.ask("hello"))["status"] == "completed"


async def test_other_rates_become_24_khz() -> None:
    with FakeServer(topology=replace(FAKE, sample_rate=16_000)) as server:
        async with calling(server.url) as caller:
            response = await caller.ask("hello")
            assert len(caller.pcm(response["id"])) == pytest.approx(2 * SOUND.size * 1.5, abs=4)
        server.check_clean()


async def test_long_sound_comes_in_pieces() -> None:
    answers = {**ANSWERS, "code2wav": Answer(samples=(0.25,) * 60_000)}
    with FakeServer(answers=answers) as server:
        async with calling(server.url) as caller:
            response = await caller.ask("hello")
            deltas = [e for e in caller.events if e["type"] == "response.output_audio.delta"]
            assert len(deltas) == 3
            assert len(caller.pcm(response["id"])) == 120_000
        server.check_clean()


async def test_failures_of_the_runtime_fail_the_response() -> None:
    """The connection goes on."""
    with FakeServer() as server:
        async with calling(server.url) as caller:
            server.on_loop(lambda: server.stages["talker"].die(StageDiedError("it fell")))
            response = await caller.ask("hello")
            assert response["status"] == "failed"
            assert response["status_details"]["error"]["code"] == "stage_died"
            await caller.set(output_modalities=["text"])
            assert (await caller.ask("hello"))["status"] == "completed"


ONE_AT_A_TIME = replace(
    FAKE,
    stages=tuple(replace(s, engine={**s.engine, "max_num_seqs": 1}) for s in FAKE.stages),
)


async def test_an_overloaded_pipeline_fails_the_response_and_not_the_call() -> None:
    with FakeServer(answers={}, topology=ONE_AT_A_TIME, settings={"max_queued": 0}) as server:
        async with calling(server.url) as first, calling(server.url) as second:
            await first.say("hello")
            await first.connection.response.create()
            await until(server, lambda: server.omni.num_running == 1)
            error = (await second.ask("hello"))["status_details"]["error"]
            assert (error["code"], error["type"]) == ("overloaded", "rate_limit_error")
            await first.connection.response.cancel()
            await Hands(server).acknowledge()
            assert (await first.done())["status"] == "cancelled"
            await second.connection.response.create()
            await Hands(server).text(1, finish="stop")
        # The second caller has gone amid its answer.
        await Hands(server).acknowledge()
        server.check_clean()


async def test_who_may_call() -> None:
    with FakeServer(settings={"api_key": "secret"}) as server:
        url = server.url.replace("http", "ws") + "/v1/realtime"
        with pytest.raises(InvalidStatus) as refused:
            await connect(url)
        assert refused.value.response.status_code == 401
        protocols = ["realtime", "openai-insecure-api-key.secret"]
        async with connect(url + "?model=fake", subprotocols=protocols) as socket:  # type: ignore[arg-type]
            assert socket.subprotocol == "realtime"
        client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="secret")
        with pytest.raises(InvalidStatus) as refused:
            await client.realtime.connect(model="another").enter()
        assert refused.value.response.status_code == 404
        assert b"model_not_found" in refused.value.response.body
        await client.close()
        server.check_clean()


async def test_a_header_that_makes_no_sense_and_a_deadline(fake_server: FakeServer) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with calling(fake_server.url, **{"x-deadline-s": "soon"}):
            pass
    assert refused.value.response.status_code == 400
    with FakeServer(answers={}) as server:
        async with calling(server.url, **{"x-deadline-s": "1.5"}) as caller:
            await caller.say("hello")
            await caller.connection.response.create()
            await Hands(server).acknowledge()
            error = (await caller.done())["status_details"]["error"]
            assert error["code"] == "deadline_exceeded"


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager")
def test_the_client_without_asyncio(fake_server: FakeServer) -> None:
    with (
        OpenAI(base_url=f"{fake_server.url}/v1", api_key="none") as client,
        client.realtime.connect(model="fake") as connection,
    ):
        connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        connection.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Say hello!"}],
            }
        )
        connection.response.create()
        text = ""
        for event in connection:
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.done":
                break
        assert text == "one two three"


async def test_events_to_a_handler(fake_server: FakeServer) -> None:
    """The client's other way to listen."""
    async with (
        AsyncOpenAI(base_url=f"{fake_server.url}/v1", api_key="none") as client,
        client.realtime.connect(model="fake") as connection,
    ):
        created = asyncio.Event()
        connection.on("session.created", lambda event: created.set())
        listening = asyncio.create_task(connection.dispatch_events())
        await asyncio.wait_for(created.wait(), 10)
        listening.cancel()
