"""A conversation without a socket: whatever is said, the caller is told one whole story."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.errors import InputTooLongError, StageDiedError
from antiphon.pipeline.topology import Entry
from antiphon.serve.errors import api_error
from antiphon.serve.realtime.answer import Outcome
from antiphon.serve.realtime.client_events import TYPES
from antiphon.serve.realtime.context import request_of, shorten
from realtime_events import check_all
from realtime_talk import ABILITIES, SECOND, Talk, message


def test_what_is_not_served_is_named() -> None:
    talk = Talk()
    for field, session in (
        ("session.tools", {"tools": [{"type": "function", "name": "f"}]}),
        ("session.audio.input.turn_detection", {"audio": {"input": {"turn_detection": {}}}}),
        ("session.audio.input.format", {"audio": {"input": {"format": {"type": "audio/pcmu"}}}}),
        ("session.audio.output.speed", {"audio": {"output": {"speed": 1.5}}}),
        ("session.output_modalities", {"output_modalities": ["text", "audio"]}),
        ("session.max_output_tokens", {"max_output_tokens": 5000}),
        ("session.modalities", {"modalities": ["text"]}),
        ("session.model", {"model": "another"}),
        ("session.type", {"type": "transcription"}),
    ):
        if field.endswith("turn_detection"):
            session["audio"]["input"]["turn_detection"] = {"type": "server_vad"}
        error = talk.error("session.update", session=session)
        assert error["param"] == field
        assert error["type"] == "invalid_request_error"
    assert (
        "commit"
        in talk.error(
            "session.update",
            session={"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}},
        )["message"]
    )


def test_a_session_says_what_holds() -> None:
    talk = Talk()
    (told,) = talk.say(
        "session.update",
        session={
            "type": "realtime",
            "model": "fake",
            "instructions": "Be brief.",
            "output_modalities": ["text"],
            "max_output_tokens": 20,
            "tools": [],
            "tool_choice": "auto",
            "audio": {
                "input": {"turn_detection": None, "transcription": {"model": "whisper-1"}},
                "output": {"voice": "ethan", "format": {"type": "audio/pcm", "rate": 24000}},
            },
        },
    )
    assert told["type"] == "session.updated"
    session = told["session"]
    assert session["instructions"] == "Be brief."
    assert session["audio"]["output"]["voice"] == "ethan"
    assert session["audio"]["input"]["transcription"] == {"model": "fake"}
    talk.ask("hello")
    request = request_of(talk.respond(), ABILITIES)
    assert request.modalities == ("text",)
    assert request.sampling == {"thinker": {"max_tokens": 20}}
    assert request.params == {"speaker": "ethan"}
    assert [m["content"] for m in request.messages] == ["Be brief.", "hello"]


def test_one_voice_has_the_names_of_openais() -> None:
    talk = Talk(entry=Entry("chat", "thinker", "fake:Chat"))
    (told,) = talk.say("session.update", session={"audio": {"output": {"voice": "marin"}}})
    assert told["session"]["audio"]["output"]["voice"] == "default"
    error = talk.error("session.update", session={"audio": {"output": {"voice": "anyone"}}})
    assert "anyone" in error["message"]


@pytest.mark.parametrize(
    ("sent", "code", "param"),
    [
        ("{", "invalid_json", None),
        ('{"type": "x", "deep": ' + "[" * 100_000, "invalid_json", None),
        ("[]", "invalid_parameter", None),
        ("{}", "missing_required_parameter", "type"),
        ('{"type": 1}', "invalid_parameter", "type"),
        ('{"type": "response.made_up"}', "unknown_event_type", "type"),
        ('{"type": "input_audio_buffer.append"}', "missing_required_parameter", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "?"}', "invalid_audio", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": 1}', "invalid_parameter", "audio"),
        ('{"type": "input_audio_buffer.commit", "a`b": 1}', "unknown_parameter", "a`b"),
        ('{"type": "input_audio_buffer.commit"}', "input_audio_buffer_commit_empty", None),
        ('{"type": "response.cancel"}', "response_cancel_not_active", None),
        ('{"type": "conversation.item.delete", "item_id": "x"}', "item_not_found", "item_id"),
        ('{"type": "response.create", "response": {"tools": [1]}}', "unsupported_value", None),
        ('{"type": "response.create", "response": {"temperature": 1e999}}', None, None),
    ],
)
def test_mistakes(sent: str, code: str | None, param: str | None) -> None:
    talk = Talk()
    assert talk.conversation.receive(sent) == []
    error = talk.events[-1]["error"]
    assert talk.events[-1]["type"] == "error"
    assert code is None or error["code"] == code
    assert param is None or error["param"] == param
    check_all(talk.events)
    talk.ask()
    assert talk.texts() == [("user", "hello")]


def test_messages_that_cannot_be() -> None:
    talk = Talk()
    for item in (
        message("", "system") | {"content": []},
        {"type": "function_call", "name": "f", "arguments": "{}"},
        message("x") | {"content": [{"type": "input_image", "image_url": "data:"}]},
        message("x") | {"content": [{"type": "output_text", "text": "x"}]},
        message("x") | {"content": [{"type": "input_text"}]},
        message("x") | {"content": [{"type": "input_audio", "audio": "AAAA"}]},
        message("x") | {"content": [{"type": "input_audio", "text": "x"}]},
    ):
        assert talk.error("conversation.item.create", item=item)["param"].startswith("item")
    assert len(talk.events) == 8
    deaf = Talk(hears=False, transcribes=False)
    assert "does not hear" in deaf.error("input_audio_buffer.append", audio=SECOND)["message"]


def test_places_of_messages() -> None:
    talk = Talk()
    talk.say("conversation.item.create", item=message("b", id="b"))
    talk.say("conversation.item.create", item=message("c", id="c"))
    added, _ = talk.say(
        "conversation.item.create", item=message("a", id="a"), previous_item_id="root"
    )
    assert added["previous_item_id"] is None
    added, _ = talk.say(
        "conversation.item.create", item=message("b2", id="d"), previous_item_id="b"
    )
    assert added["previous_item_id"] == "b"
    for fields, code in (
        ({"item": message("x", id="a")}, "item_already_exists"),
        ({"item": message("x"), "previous_item_id": "nowhere"}, "item_not_found"),
    ):
        assert talk.error("conversation.item.create", **fields)["code"] == code
    talk.say("conversation.item.delete", item_id="c")
    assert [text for _, text in talk.texts()] == ["a", "b", "b2"]


def test_the_conversation_is_bounded() -> None:
    talk = Talk(max_items=2)
    talk.ask()
    talk.ask()
    for type_, fields in (
        ("conversation.item.create", {"item": message("x")}),
        ("response.create", {}),
    ):
        assert talk.error(type_, **fields)["code"] == "conversation_full"
    full = Talk()
    item = {"type": "message", "role": "user", "content": [{"type": "input_audio"}]}
    item["content"] = [{"type": "input_audio", "audio": base64.b64encode(bytes(300_000)).decode()}]
    assert [e["type"] for e in full.say("conversation.item.create", item=item)] == [
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert full.error("conversation.item.create", item=item)["code"] == "conversation_full"
    error = Talk(max_audio_s=0.5).error("input_audio_buffer.append", audio=SECOND)
    assert error["code"] == "input_audio_buffer_full"


def test_an_interrupted_answer_stays_as_far_as_it_was_heard() -> None:
    talk = Talk()
    talk.ask()
    answer = talk.respond()
    answer.on_text("one two three four")
    answer.on_sound(bytes(48_000))
    before = len(talk.events)
    talk.say("response.cancel")
    assert [event["type"] for event in talk.events[before:]] == [
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    done = talk.events[-1]["response"]
    assert done["status"] == "cancelled"
    assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    assert talk.texts()[-1] == ("assistant", "one two three four")
    item = done["output"][0]["id"]
    for fields, param in (
        ({"audio_end_ms": 1001, "content_index": 0}, "audio_end_ms"),
        ({"audio_end_ms": 1, "content_index": 1}, "item_id"),
        ({"audio_end_ms": -1, "content_index": 0}, "audio_end_ms"),
    ):
        assert talk.error("conversation.item.truncate", item_id=item, **fields)["param"] == param
    told = talk.say("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=500)
    assert [event["type"] for event in told] == ["conversation.item.truncated"]
    assert talk.texts()[-1] == ("assistant", "one two")
    talk.say("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=0)
    assert talk.texts() == [("user", "hello")]


def test_what_still_comes_of_a_cancelled_answer_is_dropped() -> None:
    talk = Talk()
    talk.ask()
    answer = talk.respond()
    answer.on_text("one")
    answer.cancel()
    before = len(talk.events)
    answer.on_text(" two")
    answer.on_sound(bytes(480))
    assert len(talk.events) == before
    assert talk.error("response.cancel")["code"] == "response_cancel_not_active"
    assert talk.error("response.create")["code"] == "conversation_already_has_active_response"
    talk.finish(Outcome("completed"))
    assert talk.events[-1]["response"]["status"] == "cancelled"
    check_all(talk.events)


def test_an_answer_outside_the_conversation() -> None:
    talk = Talk()
    talk.say("conversation.item.create", item=message("hello", id="h"))
    answer = talk.respond(
        conversation="none",
        instructions="Be brief.",
        output_modalities=["text"],
        metadata={"topic": "greeting"},
        max_output_tokens="inf",
        input=[{"type": "item_reference", "id": "h"}, message("and?")],
    )
    request = request_of(answer, ABILITIES)
    assert [m["content"] for m in request.messages] == ["Be brief.", "hello", "and?"]
    answer.on_text("yes")
    talk.finish(Outcome("completed"))
    done = talk.events[-1]["response"]
    assert (done["conversation_id"], done["metadata"]) == (None, {"topic": "greeting"})
    assert talk.texts() == [("user", "hello")]
    check_all(talk.events)


def test_a_failed_answer_says_why() -> None:
    talk = Talk()
    talk.ask()
    talk.respond()
    talk.finish(Outcome("failed", error=api_error(StageDiedError("it fell"))))
    details = talk.events[-1]["response"]["status_details"]
    assert details["error"]["code"] == "stage_died"
    assert details["error"]["message"] == "it fell"
    check_all(talk.events)


def test_transcripts_are_what_is_read_where_an_ear_writes_them() -> None:
    talk = Talk(reads_transcripts=True)
    talk.say("session.update", session={"audio": {"input": {"transcription": {}}}})
    talk.say("input_audio_buffer.append", audio=SECOND)
    told = [event["type"] for event in talk.say("input_audio_buffer.commit")]
    assert told == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    (listen,) = talk.listens
    request = request_of(talk.respond(), ABILITIES)
    assert len(request.messages[0]["audio"]) == 1  # nobody has written it down yet
    talk.finish(Outcome("failed"))
    talk.conversation.heard(listen, " seven ")
    assert talk.events[-1]["transcript"] == "seven"
    assert talk.texts() == [("user", "seven")]
    talk.say("input_audio_buffer.append", audio=SECOND)
    talk.say("input_audio_buffer.commit")
    talk.conversation.not_heard(talk.listens[-1], InputTooLongError("too long"))
    assert talk.events[-1]["error"]["code"] == "input_too_long"
    check_all(talk.events)


def test_a_model_that_hears_by_itself_is_given_the_sound() -> None:
    """The transcript is for the caller."""
    talk = Talk()
    talk.say("session.update", session={"audio": {"input": {"transcription": {}}}})
    talk.say("input_audio_buffer.append", audio=SECOND)
    talk.say("input_audio_buffer.commit")
    talk.conversation.heard(talk.listens[0], "seven")
    assert talk.events[-1]["transcript"] == "seven"
    (told,) = talk.say("conversation.item.retrieve", item_id=talk.events[-1]["item_id"])
    assert told["item"]["content"][0] == {
        "type": "input_audio",
        "audio": SECOND,
        "transcript": "seven",
    }
    (asked,) = request_of(talk.respond(), ABILITIES).messages
    assert (asked["content"], len(asked["audio"])) == ("", 1)


def test_the_oldest_messages_are_forgotten_when_the_context_is_full() -> None:
    talk = Talk()
    talk.say("conversation.item.create", item=message("rules", "system"))
    for number in range(8):
        talk.ask(str(number))
    assert shorten(talk.respond())
    talk.finish(Outcome("failed"))
    assert [text for _, text in talk.texts()] == ["rules", "1", "2", "3", "4", "5", "6", "7"]
    talk.say("session.update", session={"truncation": "disabled"})
    assert not shorten(talk.respond())


def test_no_more_clips_than_a_request_may_have() -> None:
    talk = Talk()
    short = base64.b64encode(bytes(9_600)).decode()
    for _ in range(20):
        talk.say("input_audio_buffer.append", audio=short)
        talk.say("input_audio_buffer.commit")
    request = request_of(talk.respond(), ABILITIES)
    assert sum(len(m["audio"]) for m in request.messages) <= 16


# fmt: off
FIELDS = st.sampled_from([
    "session", "type", "audio", "item", "content", "text", "id", "item_id", "response", "input",
    "output", "format", "voice", "role", "audio_end_ms", "content_index", "metadata", "tools",
])
# fmt: on
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(
        st.one_of(
            st.text(max_size=50),
            st.fixed_dictionaries({"type": st.sampled_from(TYPES)}).flatmap(
                lambda base: st.dictionaries(FIELDS, JSON, max_size=4).map(lambda d: d | base)
            ),
        ),
        max_size=5,
    )
)
@settings(max_examples=300, deadline=None)
def test_nonsense_is_never_more_than_an_error(messages: list[Any]) -> None:
    talk = Talk()
    for said in messages:
        talk.send(said if isinstance(said, str) else json.dumps(said))
    check_all(talk.events, whole=False)


OUTCOMES = (
    Outcome("completed"),
    Outcome("incomplete", "max_output_tokens"),
    Outcome("cancelled"),
    Outcome("failed", error=api_error(StageDiedError("it fell"))),
)


class Machine(RuleBasedStateMachine):
    """Any caller, any pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.talk = Talk(max_items=12)

    def _item(self, data: st.DataObject) -> str:
        known = [event["item"]["id"] for event in self.talk.events if "item" in event]
        return data.draw(st.sampled_from([*known, "unknown"]))

    @rule(output=st.sampled_from(["audio", "text"]), heard=st.booleans())
    def update(self, output: str, heard: bool) -> None:
        audio = {"input": {"transcription": {} if heard else None}}
        self.talk.say("session.update", session={"output_modalities": [output], "audio": audio})

    @rule()
    def append(self) -> None:
        self.talk.say("input_audio_buffer.append", audio=SECOND)

    @rule(type_=st.sampled_from(["input_audio_buffer.commit", "input_audio_buffer.clear"]))
    def buffer(self, type_: str) -> None:
        self.talk.say(type_)

    @rule(role=st.sampled_from(["system", "user", "assistant"]), data=st.data())
    def create(self, role: str, data: st.DataObject) -> None:
        after = data.draw(st.sampled_from([None, "root", self._item(data)]))
        self.talk.say(
            "conversation.item.create", item=message("hello", role), previous_item_id=after
        )

    @rule(
        type_=st.sampled_from(["conversation.item.retrieve", "conversation.item.delete"]),
        data=st.data(),
    )
    def item(self, type_: str, data: st.DataObject) -> None:
        self.talk.say(type_, item_id=self._item(data))

    @rule(data=st.data(), end_ms=st.integers(0, 3000))
    def truncate(self, data: st.DataObject, end_ms: int) -> None:
        self.talk.say(
            "conversation.item.truncate",
            item_id=self._item(data),
            content_index=0,
            audio_end_ms=end_ms,
        )

    @rule(conversation=st.sampled_from(["auto", "none"]), own=st.booleans())
    def respond(self, conversation: str, own: bool) -> None:
        given: dict[str, Any] = {"conversation": conversation}
        if own:
            given["input"] = [message("hello")]
        self.talk.say("response.create", response=given)

    @rule()
    def cancel(self) -> None:
        self.talk.say("response.cancel")

    @precondition(lambda self: self.talk.answer is not None)
    @rule(text=st.sampled_from(["", "one", " two\n"]))
    def text(self, text: str) -> None:
        self.talk.answer.on_text(text)

    @precondition(
        lambda self: self.talk.answer is not None and self.talk.answer.options.output == "audio"
    )
    @rule(samples=st.sampled_from([0, 1, 480, 24_000, 60_000]))
    def sound(self, samples: int) -> None:
        self.talk.answer.on_sound(bytes(2 * samples))

    @precondition(lambda self: self.talk.answer is not None)
    @rule(outcome=st.sampled_from(OUTCOMES))
    def end(self, outcome: Outcome) -> None:
        self.talk.finish(outcome)

    @precondition(lambda self: self.talk.listens)
    @rule(well=st.booleans())
    def hear(self, well: bool) -> None:
        listen = self.talk.listens.pop(0)
        if well:
            self.talk.conversation.heard(listen, "seven")
        else:
            self.talk.conversation.not_heard(listen, StageDiedError("it fell"))

    @invariant()
    def one_answer_at_most(self) -> None:
        assert self.talk.conversation.answer is self.talk.answer

    def teardown(self) -> None:
        check_all(self.talk.events, whole=self.talk.answer is None)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
