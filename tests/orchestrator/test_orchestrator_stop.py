"""Requests that end at a stop string, on every stage, with one outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from antiphon.errors import DeadlineExceededError, InvalidRequestError
from antiphon.observe.metrics import Metrics
from antiphon.orchestrator.api import OmniRequest
from antiphon.orchestrator.flow import FlowPlan
from antiphon.orchestrator.live import LiveRequest, Phase
from antiphon.pipeline.detokenize import Detokenizer
from antiphon.pipeline.topology import Topology
from antiphon.stage.messages import Abort
from exposed import Exposed, as_text
from heard_pipeline import CLIP, HEARD
from kv_pipelines import HALVES, PAINTING
from routing import Routing, drain, outcomes, reply_of, settle, text_of, uid, word_tokenizer
from sample_pipeline import TOPOLOGY


def ask(routing: Routing, *stop: str, **given: Any) -> LiveRequest:
    return routing.submit(modalities=("text",), stop=stop, **given)


def write(routing: Routing, live: LiveRequest, *words: int, finish: str | None = None) -> None:
    """One word at a time, a second each."""
    for word in words:
        routing.clock.advance(1)
        last = finish if word == words[-1] else None
        routing["thinker"].tokens(uid(live), word, finish=last)


# --- where the text ends ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (("two",), "one "),
        (("e t",), "on"),  # across deltas
        (("three", "e t"), "on"),  # the first that is complete
        (("one two three",), ""),
        (("two four", "o thr"), "one tw"),
    ],
)
async def test_the_text_ends_before_a_stop_string(stop: tuple[str, ...], text: str) -> None:
    routing = Routing()
    live = ask(routing, *stop)
    write(routing, live, 1, 2, 3, 4)
    routing.acknowledge_all()
    events = drain(live)
    reply = reply_of(events)
    assert text_of(events) == reply.text == text
    assert reply.finish_reason == "stop"
    routing.assert_empty()


@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_a_stop_string_that_is_never_complete_is_text(reason: str) -> None:
    routing = Routing()
    live = ask(routing, "two threes")
    write(routing, live, 1, 2)
    assert text_of(drain(live)) == "one "
    write(routing, live, 3, finish=reason)
    events = drain(live)
    reply = reply_of(events)
    assert text_of(events) == "two three"
    assert (reply.text, reply.finish_reason) == ("one two three", reason)
    assert reply.timings.total_s == 3
    assert routing["thinker"].sent(Abort) == []


async def test_an_abort_gives_what_was_held_back() -> None:
    routing = Routing()
    live = ask(routing, "one twos")
    write(routing, live, 1, 2)
    live.end(None, "request")
    routing.acknowledge_all()
    events = drain(live)
    reply = reply_of(events)
    assert text_of(events) == reply.text == "one two"
    assert reply.finish_reason == "abort"


async def test_a_text_that_is_all_held_back_is_first_there_at_the_end() -> None:
    routing = Routing()
    live = ask(routing, "one two three")
    write(routing, live, 1, 2, finish="stop")
    reply = reply_of(drain(live))
    assert (reply.timings.ttft_s, reply.timings.total_s) == (2, 2)


# --- the end on the stages --------------------------------------------------------------------


async def test_the_request_ends_once_its_stage_has_let_go() -> None:
    routing = Routing()
    live = ask(routing, "two", request_id="mine")
    write(routing, live, 1, 2)
    (command,) = routing["thinker"].sent(Abort)
    assert command.uids == [uid(live)]
    assert outcomes(drain(live)) == []
    routing["thinker"].tokens(uid(live), 3)  # was under way
    assert outcomes(drain(live)) == []
    assert routing.router.find("mine") is live
    routing.clock.advance(0.5)
    routing.acknowledge_all()
    reply = reply_of(drain(live))
    assert (reply.text, reply.usage.completion_tokens) == ("one ", 2)
    assert routing.router.find("mine") is None
    routing.assert_empty()


async def test_it_has_finished_to_all_who_watch() -> None:
    routing = Routing()
    metrics = Metrics("sample")
    routing.router.observers.add(metrics)
    live = ask(routing, "two")
    write(routing, live, 1, 2)
    routing.clock.advance(1)
    routing.acknowledge_all()
    reply = reply_of(drain(live))
    timeline = reply.timeline
    assert timeline is not None
    assert (timeline.outcome, timeline.cause, timeline.message) == ("stop", None, None)
    assert (timeline.total_s, timeline.ttft_s, timeline.output_tokens) == (3, 1, 2)
    (unit,) = timeline.stages
    assert (unit.finish, unit.last_s, reply.timings.total_s) == ("stop", 2, 2)
    found = Exposed(as_text(metrics.families()))
    assert found.value("antiphon:requests_total", outcome="stop") == 1
    assert found.value("antiphon:e2e_request_latency_seconds_sum") == 3
    assert found.value("antiphon:requests_running") == 0
    assert not found.find("antiphon:requests_total", outcome="abort")


async def test_every_stage_of_the_way_to_the_text_is_told() -> None:
    routing = Routing(HALVES)
    live = ask(routing, "two")
    routing["prefill"].tokens(uid(live), 1)
    routing["prefill"].ref(uid(live), "cache")
    routing["decode"].tokens(uid(live), 1, 2)
    for stage in ("prefill", "decode"):
        assert outcomes(drain(live)) == []
        assert [abort.uids for abort in routing[stage].sent(Abort)] == [[uid(live)]]
        routing[stage].acknowledge()
    reply = reply_of(drain(live))
    assert (reply.finish_reason, reply.usage.completion_tokens) == ("stop", 2)
    routing.assert_empty()


async def test_what_is_heard_may_be_given_beside_the_text() -> None:
    """The transcript is not cut: only what is written in answer to it."""
    routing = Routing(HEARD)
    request = OmniRequest(audio=[CLIP], modalities=("transcript", "text"), stop=("two",))
    path = request.check(HEARD)
    text = Detokenizer(word_tokenizer())
    plan = FlowPlan(routing.router.new_uid(), HEARD, path, request, text)
    live = routing.router.submit(plan, [[1]], request)
    routing["ear"].tokens(uid(live), 2, finish="stop")
    routing["ear"].ref(uid(live), "hear")
    write(routing, live, 1, 2)
    assert [len(routing[name].sent(Abort)) for name in ("ear", "thinker")] == [1, 1]
    routing.acknowledge_all()
    assert reply_of(drain(live)).text == "one "
    routing.assert_empty()


# --- what may happen at the same time ---------------------------------------------------------


@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_a_stage_that_ends_with_the_stop_string_is_told_nothing(reason: str) -> None:
    routing = Routing()
    live = ask(routing, "two")
    write(routing, live, 1, 2, finish=reason)
    reply = reply_of(drain(live))
    assert (reply.text, reply.finish_reason) == ("one ", "stop")
    assert routing["thinker"].sent(Abort) == []
    routing.assert_empty()


def _abort(routing: Routing, live: LiveRequest) -> None:
    live.end(None, "disconnect")


def _deadline(routing: Routing, live: LiveRequest) -> None:
    live.end(DeadlineExceededError("the request took longer than 1 s"))


def _end(routing: Routing, live: LiveRequest) -> None:
    routing["thinker"].tokens(uid(live), 3, finish="length")


def _death(routing: Routing, live: LiveRequest) -> None:
    routing["thinker"].die()


@pytest.mark.parametrize("then", [_abort, _deadline, _end, _death])
async def test_whatever_comes_then_the_outcome_is_the_stop(
    then: Callable[[Routing, LiveRequest], None],
) -> None:
    routing = Routing()
    live = ask(routing, "two", deadline_s=60.0)
    write(routing, live, 1, 2)
    then(routing, live)
    routing.acknowledge_all()
    await settle()
    reply = reply_of(drain(live))
    assert (reply.text, reply.finish_reason, live.cause) == ("one ", "stop", None)
    assert reply.timeline is not None
    assert (reply.timeline.outcome, reply.timeline.output_tokens) == ("stop", 2)
    assert live.phase is Phase.TERMINAL
    routing.assert_empty()


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "given", "why"),
    [
        (TOPOLOGY, {"modalities": ("text", "audio")}, "ends in audio"),
        (TOPOLOGY, {"modalities": None}, "ends in audio"),
        (TOPOLOGY, {"entry": "speech", "modalities": None}, "ends in audio"),
        (PAINTING, {"modalities": ("text", "image")}, "ends in image"),
        (TOPOLOGY, {"stop": ("a",) * 5}, "at most 4"),
        (TOPOLOGY, {"stop": ("",)}, "a string of 0 characters"),
        (TOPOLOGY, {"stop": ("a", "b" * 257)}, "a string of 257 characters"),
        (TOPOLOGY, {"stop": "two"}, "stop: expected array"),
    ],
)
def test_stop_strings_that_cannot_be(topology: Topology, given: dict[str, Any], why: str) -> None:
    asked = {"text": "hello", "modalities": ("text",), "stop": ("two",), **given}
    with pytest.raises(InvalidRequestError, match=why):
        OmniRequest(**asked).check(topology)


def test_as_many_and_as_long_as_may_be() -> None:
    OmniRequest(text="hello", modalities=("text",), stop=("a" * 256,) * 4).check(TOPOLOGY)
    request = OmniRequest(entry="transcribe", audio=[CLIP], stop=("two",))
    with pytest.raises(InvalidRequestError, match="ends in transcript"):
        request.check(HEARD)
