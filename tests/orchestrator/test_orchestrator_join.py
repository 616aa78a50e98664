"""Parts of one call that are joined again, and what is heard on the way to the answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import AdapterError, EmptyInputError
from antiphon.orchestrator.api import OmniRequest, TranscriptDelta
from antiphon.orchestrator.flow import FlowPlan
from antiphon.orchestrator.live import LiveRequest
from antiphon.orchestrator.transcript import Transcript
from antiphon.pipeline.detokenize import Detokenizer
from antiphon.pipeline.entry import Prompt
from antiphon.stage.messages import Deliver, Submit
from heard_pipeline import CLIP, HEARD
from routing import Routing, drain, outcomes, reply_of, text_of, uid, word_tokenizer


def hear(
    routing: Routing,
    parts: int = 2,
    *,
    entry: str = "chat",
    modalities: tuple[str, ...] | None = ("transcript", "text"),
) -> LiveRequest:
    """Start a request whose sound is heard in `parts`."""
    request = OmniRequest(entry=entry, audio=[CLIP], modalities=modalities)
    path = request.check(HEARD)
    answers = entry == "transcribe"
    transcript = Transcript(lambda: Detokenizer(word_tokenizer()), answers=answers)
    wanted = answers or "transcript" in (modalities or ())
    plan = FlowPlan(
        routing.router.new_uid(),
        HEARD,
        path,
        request,
        None if answers else Detokenizer(word_tokenizer()),
        transcript=transcript if wanted else None,
    )
    prompts = [Prompt([1], (CLIP,), {"part": part}) for part in range(parts)]
    return routing.router.submit(plan, prompts, request)


def say(routing: Routing, part: str, *words: int) -> None:
    """The ear does its work for one part."""
    routing["ear"].tokens(part, *words, finish="stop")
    routing["ear"].ref(part, "hear")


def heard_of(events: list[object]) -> str:
    return "".join(event.text for event in events if isinstance(event, TranscriptDelta))


def test_all_parts_have_one_consumer() -> None:
    routing = Routing(HEARD)
    live = hear(routing, 3)
    assert [s.uid for s in routing["ear"].sent(Submit)] == [uid(live, part) for part in range(3)]
    assert [s.params["part"] for s in routing["ear"].sent(Submit)] == [0, 1, 2]
    (submit,) = routing["thinker"].sent(Submit)
    assert (submit.uid, submit.waits_for, submit.params) == (uid(live), "hear", {})


@given(st.permutations(range(4)))
def test_parts_are_the_chunks_of_their_consumer_whatever_their_order(order: list[int]) -> None:
    routing = Routing(HEARD)
    live = hear(routing, 4)
    for part in order:
        say(routing, uid(live, part), part)
    delivered = [item for command in routing["thinker"].sent(Deliver) for item in command.items]
    assert {to for to, _ in delivered} == {uid(live)}
    assert [(ref.uid, ref.seq, ref.end) for _, ref in delivered] == [
        (uid(live, part), part, part == 3) for part in order
    ]
    events = drain(live)
    assert heard_of(events) == "zero one two three"
    routing["thinker"].tokens(uid(live), 5, finish="stop")
    reply = reply_of(drain(live))
    assert (reply.text, reply.transcript) == ("five", "zero one two three")
    routing.assert_empty()


def test_what_is_heard_is_handed_out_in_the_order_of_the_parts() -> None:
    routing = Routing(HEARD)
    live = hear(routing)
    routing["ear"].tokens(uid(live, 1), 3)
    assert heard_of(drain(live)) == ""
    routing["ear"].tokens(uid(live, 0), 1)
    assert heard_of(drain(live)) == "one"
    routing["ear"].tokens(uid(live, 0), 2, finish="stop")
    assert heard_of(drain(live)) == " two three"
    routing["ear"].tokens(uid(live, 1), 4)
    assert heard_of(drain(live)) == " four"


def test_a_silent_part_leaves_no_trace_in_the_transcript() -> None:
    routing = Routing(HEARD)
    live = hear(routing, 3)
    for part, words in ((0, ()), (1, (1,)), (2, ())):
        say(routing, uid(live, part), *words)
    routing["thinker"].tokens(uid(live), 2, finish="stop")
    assert reply_of(drain(live)).transcript == "one"


def test_an_answer_holds_nothing_of_what_was_heard() -> None:
    """Unless it is asked for, and then apart."""
    routing = Routing(HEARD)
    live = hear(routing, 1, modalities=("text",))
    say(routing, uid(live), 1, 2)
    routing["thinker"].tokens(uid(live), 3, finish="length")
    events = drain(live)
    assert heard_of(events) == ""
    reply = reply_of(events)
    assert (reply.text, reply.transcript, reply.finish_reason) == ("three", None, "length")


def test_where_nobody_answers_the_transcript_is_the_text() -> None:
    routing = Routing(HEARD)
    live = hear(routing, entry="transcribe", modalities=None)
    for part, words in ((1, (3,)), (0, (1, 2))):
        routing["ear"].tokens(uid(live, part), *words, finish="stop")
    events = drain(live)
    assert text_of(events) == "one two three"
    reply = reply_of(events)
    assert (reply.text, reply.transcript) == ("one two three", "one two three")
    assert routing["thinker"].commands == []
    routing.assert_empty()


def test_a_second_payload_of_a_part_is_the_adapters_fault() -> None:
    routing = Routing(HEARD)
    live = hear(routing)
    routing["ear"].ref(uid(live), "hear", end=False)
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, AdapterError)
    routing.assert_empty()


@pytest.mark.parametrize("stage", ["ear", "thinker"])
def test_what_fails_one_part_ends_the_request_everywhere(stage: str) -> None:
    routing = Routing(HEARD)
    live, other = hear(routing), hear(routing)
    say(routing, uid(live, 0), 1)
    routing[stage].fail(uid(live, 1 if stage == "ear" else 0), EmptyInputError("nothing was heard"))
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, EmptyInputError)
    assert outcomes(drain(other)) == []
    routing.router.check_integrity()


def test_the_wait_of_the_consumer_is_not_counted_as_its_own() -> None:
    routing = Routing(HEARD)
    live = hear(routing)
    for part in (0, 1):
        routing.clock.advance(1.0)
        say(routing, uid(live, part), 1)
    routing.clock.advance(0.5)
    routing["thinker"].tokens(uid(live), 3, finish="stop")
    timings = reply_of(drain(live)).timings
    assert timings.stages["thinker"].queue_s == pytest.approx(0.5)
