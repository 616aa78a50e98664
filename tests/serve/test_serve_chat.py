"""Chat in text, by OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from antiphon.stage.messages import Ping, Submit
from chat_calls import ASK, begun, by_hand, events_of, meanwhile, openai_client, post
from fake_server import FakeServer, WordsEntry


def _ask(client: OpenAI, **given: Any) -> Any:
    return client.chat.completions.create(**{"model": "fake", "messages": ASK} | given)


def test_an_answer(fake_server: FakeServer) -> None:
    with openai_client(fake_server.url) as client:
        answer = _ask(client)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "one two three")
    assert (choice.finish_reason, choice.message.audio) == ("stop", None)
    assert (answer.object, answer.model) == ("chat.completion", "fake")
    assert answer.usage.prompt_tokens == 3
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 6)
    assert answer._request_id == answer.id
    assert answer.id.startswith("chatcmpl-")


def test_text_alone_visits_no_other_stage(fake_server: FakeServer) -> None:
    """C83: without `modalities` it is text, as at OpenAI, and nothing goes to the talker."""
    with openai_client(fake_server.url) as client:
        _ask(client)
    (submit,) = fake_server.stages["thinker"].sent(Submit)
    assert submit.edges == ()
    for idle in ("talker", "code2wav"):  # nothing but whether they live
        assert len(fake_server.stages[idle].commands) == len(fake_server.stages[idle].sent(Ping))


def test_a_streamed_answer(fake_server: FakeServer) -> None:
    with openai_client(fake_server.url) as client:
        chunks = list(_ask(client, stream=True))
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert [delta.content for delta in deltas] == ["", "one", " two", " three", None]
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * 4 + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_by_the_clients_helper(fake_server: FakeServer) -> None:
    """It puts the chunks together itself, and is strict about them."""
    with (
        openai_client(fake_server.url) as client,
        client.chat.completions.stream(model="fake", messages=ASK) as stream,
    ):
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert "content.delta" in kinds
    assert answer.choices[0].message.content == "one two three"


async def test_the_asynchronous_client(fake_server: FakeServer) -> None:
    async with AsyncOpenAI(base_url=fake_server.url + "/v1", api_key="none") as client:
        stream = await client.chat.completions.create(model="fake", messages=ASK, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "one two three"


def test_the_usage_ends_a_stream_that_asks_for_it(fake_server: FakeServer) -> None:
    with openai_client(fake_server.url) as client:
        *chunks, last = _ask(client, stream=True, stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (3, 3)
    assert last.usage.total_tokens == 6


def test_done_ends_a_whole_stream(fake_server: FakeServer) -> None:
    answer = post(fake_server, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-request-id"].startswith("chatcmpl-")
    assert events_of(answer)[-1] == "[DONE]"


def test_openais_parameters_are_for_the_stage_that_writes(fake_server: FakeServer) -> None:
    """C54: nothing is dropped; other stages keep their own parameters."""
    with openai_client(fake_server.url) as client:
        _ask(
            client,
            **{"modalities": ["text", "audio"], "audio": {"voice": "default", "format": "wav"}},
            max_completion_tokens=7,
            temperature=0.5,
            top_p=0.9,
            seed=11,
            presence_penalty=0.25,
            frequency_penalty=-0.25,
        )
    (thinker,) = fake_server.stages["thinker"].sent(Submit)
    asked = {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 11,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.25,
    }
    assert thinker.sampling.items() >= asked.items()
    talker = fake_server.stages["talker"].sent(Submit)[0]
    assert not asked.keys() & talker.sampling.keys()


def test_sampling_by_stage(fake_server: FakeServer) -> None:
    """An extension; where both name a parameter, what is said for the stage holds."""
    with openai_client(fake_server.url) as client:
        _ask(
            client,
            temperature=0.5,
            max_tokens=9,
            extra_body={"sampling": {"thinker": {"top_k": 3, "temperature": 0.25}}},
        )
        with pytest.raises(openai.BadRequestError, match="did you mean thinker"):
            _ask(client, extra_body={"sampling": {"thinkr": {"top_k": 3}}})
    (submit,) = fake_server.stages["thinker"].sent(Submit)
    assert submit.sampling["max_tokens"] == 9
    assert (submit.sampling["top_k"], submit.sampling["temperature"]) == (3, 0.25)


def test_a_conversation(fake_server: FakeServer) -> None:
    """Parts become one text, a developer's message is a system's, names are not looked at."""
    with openai_client(fake_server.url) as client:
        first = _ask(client).choices[0].message
        _ask(
            client,
            messages=[
                {"role": "developer", "content": "be brief"},
                {"role": "user", "name": "me", "content": [{"type": "text", "text": "one"}]},
                first,
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "two"}, {"type": "text", "text": "six"}],
                },
            ],
        )
    turns = [(message.role, message.content) for message in WordsEntry.seen[-1].messages]
    assert turns == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", "one two three"),
        ("user", "two\nsix"),
    ]


def test_a_timeline_on_demand(fake_server: FakeServer) -> None:
    with openai_client(fake_server.url) as client:
        answer = _ask(client, extra_body={"timeline": True})
        *_, last = _ask(client, stream=True, extra_body={"timeline": True})
        counting = {"stream_options": {"include_usage": True}, "extra_body": {"timeline": True}}
        *_, counted = _ask(client, stream=True, **counting)
        assert "antiphon" not in _ask(client).model_extra
    assert counted.usage.total_tokens == 6
    for found in (answer, last, counted):
        timeline = found.model_extra["antiphon"]["timeline"]
        assert timeline["label"] == found.id
        assert [stage["stage"] for stage in timeline["stages"]] == ["thinker"]


def test_length_is_a_reason() -> None:
    with (
        by_hand() as server,
        openai_client(server.url) as client,
        meanwhile(lambda: _ask(client)) as asking,
    ):
        uid = begun(server)
        server.on_loop(lambda: server.stages["thinker"].tokens(uid, 1, finish="length"))
        (choice,) = asking.result(10).choices
    assert (choice.finish_reason, choice.message.content) == ("length", "one")


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("two", "one "),
        (["three", "e t"], "on"),  # the first that is complete, across deltas
        ("one two three", ""),
        ("threes", "one two three"),  # held back, and then no stop string
    ],
)
def test_stop_strings(fake_server: FakeServer, stop: str | list[str], text: str) -> None:
    with openai_client(fake_server.url) as client:
        answer = _ask(client, stop=stop)
        chunks = list(_ask(client, stop=stop, stream=True))
    assert answer.choices[0].message.content == text
    assert answer.choices[0].finish_reason == "stop"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_stop_string_ends_the_writing() -> None:
    """The thinker, which would go on, is told; what it wrote until then is counted."""
    with (
        by_hand() as server,
        openai_client(server.url) as client,
        meanwhile(lambda: _ask(client, stop="two", extra_body={"timeline": True})) as asking,
    ):
        uid = begun(server)
        server.on_loop(lambda: server.stages["thinker"].tokens(uid, 1, 2, 3))
        answer = asking.result(10)
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("stop", "one ")
    assert answer.usage.completion_tokens == 3
    timeline = answer.model_extra["antiphon"]["timeline"]
    assert (timeline["outcome"], timeline["cause"]) == ("stop", None)
