"""What a request submits, how parts travel through the graph, and what the caller sees."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.errors import AdapterError, StageError
from antiphon.stage.messages import Deliver, Output, Step, Submit, Tensor
from routing import STREAMS, Routing, drain, outcomes, parts_of, reply_of, text_of, uid


def speak(routing: Routing, part: str, samples: list[float]) -> None:
    """Talker and vocoder do their work for one part."""
    routing["talker"].finish(part)
    routing["talker"].ref(part, "codes")
    routing["code2wav"].audio(part, samples)


def test_text_alone_stops_at_the_first_stage() -> None:
    """C83: no consumer is submitted and no edge is asked for, so nothing is sent downstream."""
    routing = Routing()
    live = routing.submit(modalities=("text",))
    (submit,) = routing["thinker"].sent(Submit)
    assert (submit.edges, submit.waits_for) == ((), None)
    assert routing["talker"].commands == routing["code2wav"].commands == []
    routing["thinker"].tokens(uid(live), 1, 2, finish="stop")
    assert reply_of(drain(live)).text == "one two"
    routing.assert_empty()


def test_every_stage_is_submitted_at_once_and_consumers_are_gated() -> None:
    routing = Routing()
    live = routing.submit()
    submits = {name: stage.sent(Submit) for name, stage in routing.stages.items()}
    assert {n: [(s.uid, s.waits_for, s.edges) for s in got] for n, got in submits.items()} == {
        "thinker": [(uid(live), None, ("speech",))],
        "talker": [(uid(live), "speech", ("codes",))],
        "code2wav": [(uid(live), "codes", ())],
    }
    assert submits["thinker"][0].token_ids == [1, 2, 3]
    assert submits["talker"][0].token_ids == []


def test_sampling_of_the_topology_and_of_the_request_are_merged_per_stage() -> None:
    """C54: what the request says reaches the stage that it names, and no other."""
    routing = Routing()
    routing.submit(sampling={"talker": {"temperature": 0.5}})
    assert routing["thinker"].sent(Submit)[0].sampling == {"max_tokens": 64}
    assert routing["talker"].sent(Submit)[0].sampling == {"temperature": 0.5}


def test_the_requests_own_wait_goes_to_every_stage() -> None:
    routing = Routing()
    routing.submit(input_wait_timeout_s=2.5)
    for name in ("thinker", "talker", "code2wav"):
        assert routing[name].sent(Submit)[0].wait_timeout_s == 2.5


def test_an_entry_may_give_several_parts() -> None:
    routing = Routing()
    live = routing.submit(entry="speech", modalities=("audio",), prompts=[[1], [2]])
    assert [s.token_ids for s in routing["talker"].sent(Submit)] == [[1], [2]]
    assert [s.uid for s in routing["code2wav"].sent(Submit)] == [uid(live, 0), uid(live, 1)]


def test_a_stage_that_splits_takes_one_prompt() -> None:
    routing = Routing()
    with pytest.raises(AdapterError, match="one prompt"):
        routing.submit(prompts=[[1], [2]])
    routing.assert_empty()


def test_an_entry_that_gives_nothing_is_an_error_and_no_endless_wait() -> None:
    routing = Routing()
    with pytest.raises(AdapterError, match="no prompt"):
        routing.submit(prompts=[])
    routing.assert_empty()


def test_a_part_keeps_one_gated_part_ahead() -> None:
    routing = Routing()
    live = routing.submit()
    routing["thinker"].ref(uid(live), "speech", end=False)
    assert [s.uid for s in routing["talker"].sent(Submit)] == [uid(live, 0), uid(live, 1)]
    assert routing["talker"].waiting == {uid(live, 1)}
    routing["thinker"].ref(uid(live), "speech", end=True)
    assert routing["talker"].waiting == set()
    assert len(routing["talker"].sent(Submit)) == 2


def test_each_part_reaches_its_consumer_as_a_whole_payload() -> None:
    routing = Routing()
    live = routing.submit()
    first = routing["thinker"].ref(uid(live), "speech", end=False)
    second = routing["thinker"].ref(uid(live), "speech", end=True)
    delivered = [item for command in routing["talker"].sent(Deliver) for item in command.items]
    assert [(to, ref.key, ref.seq, ref.end) for to, ref in delivered] == [
        (uid(live, 0), first.key, 0, True),
        (uid(live, 1), second.key, 0, True),
    ]


def test_the_empty_end_finishes_the_part_that_was_ahead() -> None:
    """C115: a producer that has nothing more says so, and nobody waits for it."""
    routing = Routing()
    live = routing.submit()
    routing["thinker"].tokens(uid(live), 1, finish="stop")
    routing["thinker"].ref(uid(live), "speech", end=False)
    speak(routing, uid(live, 0), [0.5])
    assert outcomes(drain(live)) == []
    routing["thinker"].ref(uid(live), "speech", end=True, empty=True)
    routing["talker"].finish(uid(live, 1))
    routing["talker"].ref(uid(live, 1), "codes", empty=True)
    routing["code2wav"].finish(uid(live, 1))
    assert reply_of(drain(live)).finish_reason == "stop"
    routing.assert_empty()


def test_audio_is_handed_out_in_the_order_of_the_parts() -> None:
    """C107: a later part that is ready first waits for the earlier ones."""
    routing = Routing()
    live = routing.submit(entry="speech", modalities=("audio",), prompts=[[1], [2], [3]])
    for part, expected in ((2, []), (1, []), (0, [0, 1, 2])):
        speak(routing, uid(live, part), [float(part) / 4] * (part + 1))
        events = drain(live)
        assert parts_of(events) == expected
    audio = reply_of(events).audio
    assert audio is not None
    np.testing.assert_array_equal(audio, [0.0, 0.25, 0.25, 0.5, 0.5, 0.5])
    routing.assert_empty()


def test_a_part_without_audio_does_not_hold_up_the_next() -> None:
    routing = Routing()
    live = routing.submit(entry="speech", modalities=("audio",), prompts=[[1], [2]])
    speak(routing, uid(live, 1), [0.25])
    routing["talker"].finish(uid(live, 0))
    routing["talker"].ref(uid(live, 0), "codes", empty=True)
    routing["code2wav"].finish(uid(live, 0))
    assert parts_of(drain(live)) == [1]


def test_text_comes_as_it_is_produced() -> None:
    routing = Routing()
    live = routing.submit(modalities=("text",))
    routing["thinker"].tokens(uid(live), 1)
    routing["thinker"].tokens(uid(live), 2, 3)
    assert text_of(drain(live)) == "one two three"


def test_a_request_that_wants_no_audio_is_given_none() -> None:
    routing = Routing()
    live = routing.submit(modalities=("audio",))
    routing["thinker"].tokens(uid(live), 1, finish="stop")
    routing["thinker"].ref(uid(live), "speech")
    speak(routing, uid(live), [0.5])
    events = drain(live)
    assert parts_of(events) == [0]


def test_the_finish_reason_is_the_first_stages() -> None:
    routing = Routing()
    live = routing.submit()
    routing["thinker"].tokens(uid(live), 1, finish="length")
    routing["thinker"].ref(uid(live), "speech")
    speak(routing, uid(live), [0.5])
    assert reply_of(drain(live)).finish_reason == "length"


@pytest.mark.parametrize("reason", ["abort", "error", "repetition"])
def test_a_finish_that_no_stage_may_give_by_itself_is_an_error(reason: str) -> None:
    """C59: an ending without an answer never looks like success."""
    routing = Routing()
    live = routing.submit(modalities=("text",))
    routing["thinker"].tokens(uid(live), 1, finish=reason)
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, StageError)
    assert "thinker" in str(outcome)


def test_timings_are_measured_from_the_submission() -> None:
    routing = Routing()
    clock = routing.clock
    clock.advance(100.0)
    live = routing.submit()
    clock.advance(1.0)
    routing["thinker"].tokens(uid(live), 1)
    clock.advance(2.0)
    routing["thinker"].tokens(uid(live), 2, finish="stop")
    routing["thinker"].ref(uid(live), "speech")
    clock.advance(3.0)
    routing["talker"].tokens(uid(live), 9, 9)
    clock.advance(4.0)
    routing["talker"].finish(uid(live))
    routing["talker"].ref(uid(live), "codes")
    clock.advance(5.0)
    routing["code2wav"].audio(uid(live), [0.0] * 24_000)
    timings = reply_of(drain(live)).timings
    assert (timings.ttft_s, timings.ttfa_s, timings.total_s) == (1.0, 15.0, 15.0)
    assert (timings.audio_s, timings.rtf) == (1.0, 15.0)
    thinker, talker, vocoder = (timings.stages[n] for n in ("thinker", "talker", "code2wav"))
    assert (thinker.queue_s, thinker.run_s, thinker.tokens) == (1.0, 2.0, 2)
    assert (talker.queue_s, talker.run_s, talker.tokens) == (3.0, 4.0, 2)
    assert (vocoder.queue_s, vocoder.run_s, vocoder.tokens) == (5.0, 0.0, 24_000)


def test_a_second_payload_on_an_edge_that_carries_one_is_the_adapters_fault() -> None:
    routing = Routing()
    live = routing.submit()
    routing["talker"].ref(uid(live), "codes", end=False)
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, AdapterError)
    routing.assert_empty()


def test_a_payload_on_an_edge_of_another_stage_is_the_adapters_fault() -> None:
    routing = Routing()
    live = routing.submit()
    routing["talker"].ref(uid(live), "speech")
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, AdapterError)
    routing.assert_empty()


@pytest.mark.parametrize("skip", [1, 5])
def test_a_part_out_of_order_is_the_adapters_fault(skip: int) -> None:
    """Parts have numbers without a gap; one that nobody waits for ends its request alone."""
    routing = Routing()
    live, other = routing.submit(), routing.submit()
    routing["thinker"].ref(uid(live), "speech", seq=skip)
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, AdapterError)
    assert outcomes(drain(other)) == []
    assert routing.keys == set()


def test_a_tensor_of_an_unusable_type_ends_only_its_request() -> None:
    routing = Routing()
    live, other = routing.submit(), routing.submit()
    output = Output(uid(live), tensor=Tensor("complex64", (1,), 0), finish="stop")
    routing["code2wav"].emit(Step([output], []), [bytes(8)])
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, StageError)
    assert outcomes(drain(other)) == []


# --- streams ----------------------------------------------------------------------------------


def test_the_chunks_of_a_stream_go_to_one_unit_as_they_are() -> None:
    routing = Routing(STREAMS)
    live = routing.submit()
    sent = [routing["thinker"].ref(uid(live), "speech", end=end) for end in (False, False, True)]
    delivered = [item for command in routing["talker"].sent(Deliver) for item in command.items]
    assert delivered == [(uid(live), ref) for ref in sent]
    assert len(routing["talker"].sent(Submit)) == 1


def test_a_stream_is_heard_as_it_comes() -> None:
    """While the thinker still writes, and by everybody at once."""
    routing = Routing(STREAMS)
    live = routing.submit()
    routing["thinker"].ref(uid(live), "speech", end=False)
    routing["talker"].ref(uid(live), "codes", end=False)
    for sample in (0.25, 0.5):
        routing["code2wav"].audio(uid(live), [sample], finish=None)
        assert parts_of(drain(live)) == [0]
    routing["thinker"].tokens(uid(live), 1, finish="stop")
    routing["talker"].finish(uid(live))
    routing["code2wav"].audio(uid(live), [0.75])
    reply = reply_of(drain(live))
    assert reply.audio is not None
    assert reply.audio.tolist() == [0.25, 0.5, 0.75]


def test_chunks_of_a_later_part_wait_for_their_turn() -> None:
    """C107: also those that came in several pieces."""
    routing = Routing()
    live = routing.submit(entry="speech", modalities=("audio",), prompts=[[1], [2]])
    routing["code2wav"].audio(uid(live, 1), [0.1], finish=None)
    routing["code2wav"].audio(uid(live, 1), [0.2])
    routing["code2wav"].audio(uid(live, 0), [0.3], finish=None)
    assert parts_of(drain(live)) == [0]
    routing["code2wav"].audio(uid(live, 0), [0.4])
    assert parts_of(drain(live)) == [0, 1, 1]


def test_the_gaps_of_playback_are_measured() -> None:
    routing = Routing(STREAMS)
    live = routing.submit()
    for wait_s in (1.0, 0.5, 2.0):  # each chunk plays for a second
        routing.clock.advance(wait_s)
        routing["code2wav"].audio(uid(live), [0.0] * 24_000, finish=None)
    for name in ("thinker", "talker", "code2wav"):
        routing[name].finish(uid(live))
    continuity = reply_of(drain(live)).timings.continuity
    assert continuity is not None
    assert (continuity.chunks, continuity.gaps) == (3, 1)
    assert continuity.worst_underrun_s == pytest.approx(0.5)
