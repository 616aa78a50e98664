"""Which records are kept, and what is given out of them."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from antiphon.observe.record import Timeline
from antiphon.observe.timelines import KEEP, MAX_ARRIVALS, Timelines, timeline_json
from records import VOICE


def record(number: int, label: str | None = None) -> Timeline:
    return msgspec.structs.replace(VOICE, id=f"a{number:x}", label=label)


def kept(*records: Timeline) -> Timelines:
    timelines = Timelines()
    for one in records:
        timelines.ended(one)
    timelines.check_integrity()
    return timelines


# --- what is kept -----------------------------------------------------------------------------


def test_a_record_is_found_by_its_id_and_by_its_label() -> None:
    timelines = kept(VOICE)
    assert timelines.get(VOICE.id) == VOICE
    assert timelines.get("mine") == VOICE
    assert timelines.get("other") is None
    assert timelines.get("") is None


def test_a_label_leads_to_the_latest_that_had_it() -> None:
    timelines = kept(record(1, "mine"), record(2, "mine"), record(3))
    found = timelines.get("mine")
    assert found is not None
    assert found.id == "a2"


def test_a_label_does_not_hide_the_request_whose_id_it_is() -> None:
    timelines = kept(record(1), record(2, "a1"))
    found = timelines.get("a1")
    assert found is not None
    assert found.label is None


def test_the_latest_come_first() -> None:
    timelines = kept(*(record(number) for number in range(3)))
    assert [one.id for one in timelines.latest()] == ["a2", "a1", "a0"]
    (first, *_) = timelines.latest()
    assert (first.outcome, first.total_s, first.ttfa_s) == ("stop", 2.0, 0.75)


def test_the_oldest_make_room() -> None:
    timelines = kept(*(record(number, f"label {number}") for number in range(KEEP + 2)))
    assert len(timelines.latest()) == KEEP
    assert timelines.get("a1") is None
    assert timelines.get("label 1") is None
    assert timelines.get("a2") is not None


def test_large_records_leave_room_for_fewer() -> None:
    one = len(msgspec.msgpack.encode(record(16)))
    timelines = Timelines(keep_bytes=10 * one)
    for number in range(16, 36):
        timelines.ended(record(number))
        assert timelines.nbytes <= 10 * one
    assert len(timelines.latest()) == 10


def test_a_record_that_is_too_large_does_not_drive_out_the_others() -> None:
    timelines = Timelines(keep_bytes=100_000)
    timelines.ended(record(1))
    timelines.ended(record(2, "x" * 100_000))
    assert [one.id for one in timelines.latest()] == ["a1"]


def test_what_has_not_ended_is_not_there() -> None:
    timelines = Timelines()
    timelines.began("a1", ("thinker",))
    timelines.first_output("a1")
    timelines.refused("overloaded")
    assert timelines.latest() == []


class Machine(RuleBasedStateMachine):
    """Any records, against a list of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Timeline] = []
        self.timelines = Timelines(keep=4, keep_bytes=20_000)

    @rule(label=st.none() | st.sampled_from("xyz"), arrivals=st.integers(0, 300))
    def end(self, label: str | None, arrivals: int) -> None:
        one = record(len(self.all), label)
        self.all.append(msgspec.structs.replace(one, text_s=((0.5, 1),) * arrivals))
        self.timelines.ended(self.all[-1])

    @invariant()
    def bounded(self) -> None:
        self.timelines.check_integrity()
        latest = self.timelines.latest()
        assert len(latest) <= 4
        assert self.timelines.nbytes <= 20_000
        for label in "xyz":
            of_label = [one.id for one in latest if one.label == label]
            found = self.timelines.get(label)
            assert (found.id if found else None) == (of_label[0] if of_label else None)


TestTimelines = Machine.TestCase


# --- what is given out ------------------------------------------------------------------------


def test_the_public_form_is_the_record_without_its_trace_headers() -> None:
    given_out = timeline_json(msgspec.structs.replace(VOICE, trace_headers={"traceparent": "x"}))
    names = {field.name for field in msgspec.structs.fields(Timeline)}
    assert given_out.keys() == names - {"trace_headers"}
    assert msgspec.convert(json.loads(json.dumps(given_out)), Timeline) == VOICE


def test_what_is_kept_has_no_trace_headers() -> None:
    found = kept(msgspec.structs.replace(VOICE, trace_headers={"traceparent": "x"})).get(VOICE.id)
    assert found == VOICE


@pytest.mark.parametrize("count", [0, 1, MAX_ARRIVALS, MAX_ARRIVALS + 1, 100_000])
def test_long_lists_are_thinned_and_keep_their_sum(count: int) -> None:
    arrivals = tuple((index / 8, 2) for index in range(count))
    timeline = msgspec.structs.replace(
        VOICE, text_s=arrivals, audio_s=tuple((at_s, 0.25) for at_s, _ in arrivals)
    )
    found = kept(timeline).get(VOICE.id)
    assert found is not None
    for thinned, unit in ((found.text_s, 2), (found.audio_s, 0.25)):
        assert len(thinned) == min(count, len(thinned), MAX_ARRIVALS)
        assert sum(size for _, size in thinned) == count * unit
        assert [at_s for at_s, _ in thinned][:1] == [at_s for at_s, _ in arrivals[:1]]
    assert msgspec.convert(timeline_json(timeline), Timeline) == found


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 10)), max_size=2000))
def test_thinned_lists_stay_in_their_order(arrivals: list[tuple[float, int]]) -> None:
    arrivals.sort()
    found = timeline_json(msgspec.structs.replace(VOICE, text_s=tuple(arrivals)))["text_s"]
    assert len(found) <= MAX_ARRIVALS
    assert [at_s for at_s, _ in found] == sorted(at_s for at_s, _ in found)
