"""Outputs that share what leads to them, and text that a later stage writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import (
    InvalidRequestError,
    KVTransferError,
    StageError,
)
from antiphon.orchestrator.api import OmniRequest
from antiphon.orchestrator.deliveries import Deliveries
from antiphon.orchestrator.intake import Intake
from antiphon.payload.ref import Ref
from antiphon.pipeline.entry import EntryRequest
from antiphon.pipeline.topology import Entry
from antiphon.stage.messages import Deliver, Discard, Submit, Used
from antiphon.testing.fake_stage import Answer
from kv_pipelines import HALVES, PAINTING, VOICES
from routing import (
    Routing,
    drain,
    outcomes,
    parts_of,
    picture,
    pictures_of,
    reply_of,
    text_of,
    uid,
    word_tokenizer,
)
from sample_pipeline import TOPOLOGY

# --- companions -----------------------------------------------------------------------------------


def test_companions_are_submitted_together_and_know_their_number() -> None:
    routing = Routing(PAINTING)
    live = routing.submit(n=3)
    (thinker,) = routing["thinker"].sent(Submit)
    assert (thinker.edges, thinker.params) == (("scene",), {})
    found = [(s.uid, s.waits_for, s.params) for s in routing["painter"].sent(Submit)]
    assert found == [(uid(live, i), "scene", {"companion": i}) for i in range(3)]


def test_one_output_is_the_first_companion() -> None:
    """So that it is the same picture, however many are asked for."""
    routing = Routing(PAINTING)
    routing.submit()
    assert [s.params for s in routing["painter"].sent(Submit)] == [{"companion": 0}]


def test_units_behind_other_edges_are_no_companions() -> None:
    routing = Routing(TOPOLOGY)
    routing.submit()
    assert [s.params for n in TOPOLOGY.stage_names for s in routing[n].sent(Submit)] == [{}] * 3


def test_one_payload_goes_to_all_companions_and_is_used_up_with_the_last() -> None:
    """The producer keeps it until nobody needs it any more, and is told once."""
    routing = Routing(PAINTING)
    live = routing.submit(n=3)
    ref = routing["thinker"].ref(uid(live), "scene")
    (deliver,) = routing["painter"].sent(Deliver)
    assert deliver.items == [(uid(live, i), ref) for i in range(3)]
    routing["thinker"].tokens(uid(live), 1, finish="stop")
    for part in (2, 0):
        routing["painter"].image(uid(live, part), picture(part))
        assert routing["thinker"].sent(Used) == []
        assert routing.router.chunks_under_way == 1
    routing["painter"].image(uid(live, 1), picture(1))
    assert routing["thinker"].sent(Used) == [Used("scene", [str(ref.key)])]
    assert pictures_of(drain(live)) == {2: 2, 0: 0, 1: 1}
    routing.assert_empty()


def test_pictures_of_the_reply_are_in_the_order_of_their_numbers() -> None:
    routing = Routing(PAINTING)
    live = routing.submit(n=2)
    routing["thinker"].ref(uid(live), "scene")
    routing["thinker"].tokens(uid(live), 1, 2, finish="stop")
    for part in (1, 0):
        routing["painter"].image(uid(live, part), picture(part + 5))
    events = drain(live)
    reply = reply_of(events)
    assert [int(image[0, 0, 0]) for image in reply.images] == [5, 6]
    assert (reply.text, reply.audio) == ("one two", None)
    routing.assert_empty()


def test_companions_of_each_part_are_its_own() -> None:
    """Behind a split edge: the second sentence's payload goes to the second's companions."""
    routing = Routing(VOICES)
    live = routing.submit(n=2)
    routing["thinker"].ref(uid(live), "speech", end=False)
    routing["thinker"].ref(uid(live), "speech", end=True)
    routing["thinker"].finish(uid(live))
    submits = [(s.uid, s.params) for s in routing["code2wav"].sent(Submit)]
    assert submits == [(uid(live, i), {"companion": i % 2}) for i in range(4)]
    for part in (1, 0):  # the second sentence first
        ref = routing["talker"].ref(uid(live, part), "codes")
        (items,) = [c.items for c in routing["code2wav"].sent(Deliver)][-1:]
        assert items == [(uid(live, 2 * part + i), ref) for i in range(2)]
        routing["talker"].finish(uid(live, part))
    for index in (3, 1, 2, 0):
        routing["code2wav"].audio(uid(live, index), [index / 4])
    events = drain(live)
    assert parts_of(events) == [0, 1, 2, 3]
    audio = reply_of(events).audio
    assert audio is not None
    assert audio.tolist() == [0.0, 0.25, 0.5, 0.75]
    routing.assert_empty()


def test_companions_of_several_prompts() -> None:
    routing = Routing(VOICES)
    live = routing.submit(entry="speech", prompts=[[1], [2]], n=2)
    assert len(routing["code2wav"].sent(Submit)) == 4
    ref = routing["talker"].ref(uid(live, 1), "codes")
    (deliver,) = routing["code2wav"].sent(Deliver)
    assert deliver.items == [(uid(live, 2), ref), (uid(live, 3), ref)]


def test_an_empty_end_is_for_all_companions() -> None:
    routing = Routing(PAINTING)
    live = routing.submit(n=2)
    routing["thinker"].ref(uid(live), "scene", empty=True)
    assert [u for c in routing["painter"].sent(Deliver) for u, _ in c.items] == [
        uid(live, 0),
        uid(live, 1),
    ]
    for name, part in (("thinker", 0), ("painter", 0), ("painter", 1)):
        routing[name].finish(uid(live, part))
    assert reply_of(drain(live)).images == []
    routing.assert_empty()


def test_a_lost_cache_is_announced_by_its_tokens() -> None:
    """Nothing is stored, so nothing is owed; its consumer is told what to compute."""
    routing = Routing(HALVES)
    live = routing.submit()
    ref = routing["prefill"].ref(uid(live), "cache", empty=True, token_ids=(1, 2, 3, 4))
    assert [item for c in routing["decode"].sent(Deliver) for item in c.items] == [(uid(live), ref)]
    assert routing.router.chunks_under_way == 0
    routing["prefill"].finish(uid(live))
    routing["decode"].tokens(uid(live), 5, finish="stop")
    assert reply_of(drain(live)).text == "five"
    routing.assert_empty()


def test_what_one_companion_fails_with_is_the_requests_error() -> None:
    routing = Routing(PAINTING)
    live = routing.submit(n=3)
    routing["thinker"].ref(uid(live), "scene")
    routing["painter"].fail(uid(live, 1), StageError("no colours"))
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, StageError)
    routing.assert_empty()


def test_a_transfer_that_fails_after_its_request_has_finished_is_the_requests_error() -> None:
    routing = Routing(HALVES)
    live = routing.submit()
    routing["prefill"].finish(uid(live), "length")
    routing["prefill"].fail(uid(live), KVTransferError("nobody acknowledged it"))
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, KVTransferError)
    routing.assert_empty()


def test_a_payload_is_discarded_once_when_its_companions_stage_dies() -> None:
    routing = Routing(PAINTING)
    live = routing.submit(n=3)
    ref = routing["thinker"].ref(uid(live), "scene")
    routing["painter"].die()
    assert routing["thinker"].sent(Discard) == [Discard([str(ref.key)])]
    routing.acknowledge_all()
    assert len(outcomes(drain(live))) == 1
    assert routing.router.chunks_under_way == 0


def test_a_payload_for_companions_of_a_stage_that_is_gone_is_discarded_once() -> None:
    sent: list[Any] = []
    deliveries = Deliveries(lambda stage, command: sent.append((stage, command)), {"painter"})
    ref = Ref("a.0", "scene", 0, end=True, key="k")
    deliveries.deliver("thinker", "painter", ("a.0", "a.1"), ref)
    deliveries.flush()
    assert sent == [("thinker", Discard(["k"]))]
    assert len(deliveries) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n": 0}, "n is 0; give a number from 1 to 16"),
        ({"n": 17}, "n is 17; give a number from 1 to 16"),
        ({"n": True}, "n: expected int"),
        ({"n": 2, "modalities": ("text",)}, "n is 2, but pipeline painting makes one.*leave n out"),
        ({"n": 2, "entry": "draw"}, "n is 2, but"),  # it begins behind the edge
    ],
)
def test_a_number_of_outputs_that_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        OmniRequest(text="hi", **given).check(PAINTING)


def test_a_pipeline_without_companions_makes_one_output() -> None:
    with pytest.raises(InvalidRequestError, match=r"pipeline sample makes .*\(text, audio\)"):
        OmniRequest(text="hi", n=2).check(TOPOLOGY)
    OmniRequest(text="hi", n=16).check(PAINTING)


async def test_an_automatic_stage_computes_a_lost_cache_itself() -> None:
    """No payload came, and yet it is no empty end."""
    answers = {"prefill": Answer(), "decode": Answer(token_ids=(3,))}
    for token_ids, text in (((1, 2, 3, 4), "three"), ((), "")):
        routing = Routing(HALVES, answers)
        live = routing.submit()
        routing["prefill"].ref(uid(live), "cache", empty=True, token_ids=token_ids)
        routing["prefill"].finish(uid(live))
        await live.ended.wait()
        assert reply_of(drain(live)).text == text
        routing.assert_empty()


# --- text that a later stage writes ---------------------------------------------------------------


def test_text_comes_from_the_stage_that_gives_it() -> None:
    routing = Routing(HALVES)
    live = routing.submit()
    routing["prefill"].tokens(uid(live), 4)
    routing["prefill"].ref(uid(live), "cache")
    routing["prefill"].finish(uid(live), "length")
    routing["decode"].tokens(uid(live), 1)
    assert text_of(drain(live)) == "one"


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_the_finish_reason_is_that_of_the_text(reason: str) -> None:
    """A stage that hands its cache on after its first token has not cut the answer short."""
    routing = Routing(HALVES)
    live = routing.submit()
    routing["prefill"].ref(uid(live), "cache")
    routing["prefill"].finish(uid(live), "length" if reason == "stop" else "stop")
    routing["decode"].tokens(uid(live), 1, finish=reason)
    assert reply_of(drain(live)).finish_reason == reason


def test_without_text_the_finish_reason_is_the_first_stages() -> None:
    routing = Routing()
    live = routing.submit(entry="speech")
    routing["talker"].ref(uid(live), "codes")
    routing["talker"].finish(uid(live), "length")
    routing["code2wav"].audio(uid(live), [0.5])
    assert reply_of(drain(live)).finish_reason == "length"


# --- intake ---------------------------------------------------------------------------------------


class Talkative:
    """Could go on where an answer ended."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint

    def prompts(self, request: EntryRequest) -> list[list[int]]:
        return [[1]]

    def continuation(self, text: str) -> list[int]:
        return [2]


def intake(folder: Path) -> Intake:
    word_tokenizer().save(str(folder / "tokenizer.json"))
    entries = (Entry("chat", "thinker", f"{__name__}:Talkative"),)
    topology = replace(PAINTING, entries=entries)
    return Intake(topology, dict.fromkeys(topology.stage_names, str(folder)), None)


def test_a_stage_that_hands_its_cache_on_holds_no_session(tmp_path: Path) -> None:
    """Its request ends with the transfer, or its blocks are another stage's business."""
    made = intake(tmp_path)
    request = OmniRequest()
    with pytest.raises(InvalidRequestError, match=r"thinker, which hands.*scene.*; make requests"):
        made.check_session(request, request.check_options(PAINTING))


def test_a_session_that_does_not_need_the_cache_is_held(tmp_path: Path) -> None:
    made = intake(tmp_path)
    request = OmniRequest(modalities=("text",))
    made.check_session(request, request.check_options(PAINTING))


def test_all_that_there_is_has_text(tmp_path: Path) -> None:
    """Modalities that are not named are all."""
    made = intake(tmp_path)
    for modalities, wanted in ((None, True), (("text", "image"), True), (("image",), False)):
        request = OmniRequest(text="hi", modalities=modalities)
        found = made.detokenizer(request, request.check(PAINTING))
        assert (found is not None) == wanted
