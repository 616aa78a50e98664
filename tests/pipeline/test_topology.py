"""Topologies: what is valid, what each mistake is told, and the paths of requests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidRequestError, TopologyError
from antiphon.pipeline.topology import (
    Edge,
    EdgeMode,
    Entry,
    Preemption,
    Stage,
    StageKind,
    Topology,
)
from sample_pipeline import CHAT, CODE2WAV, CODES, MODEL, SAY, SPEECH, TALKER, THINKER, TOPOLOGY

WRONG = {
    "duplicate stage": (
        {"stages": (THINKER, TALKER, CODE2WAV, replace(TALKER, output="text2"))},
        "declares stage 'talker' 2 times",
    ),
    "duplicate edge": (
        {"edges": (SPEECH, replace(CODES, name="speech"))},
        "declares edge 'speech' 2 times",
    ),
    "duplicate entry": ({"entries": (CHAT, replace(SAY, name="chat"))}, "entry 'chat' 2 times"),
    "two stages with one output": (
        {"stages": (THINKER, replace(TALKER, output="text"), CODE2WAV)},
        "declares output 'text' 2 times",
    ),
    "stage name": (
        {"stages": (replace(THINKER, name="The Thinker"), TALKER, CODE2WAV)},
        "stage name 'The Thinker'.*lower-case",
    ),
    "pipeline name": ({"name": ""}, "pipeline name ''"),
    "edge to nowhere": (
        {"edges": (SPEECH, replace(CODES, consumer="code2wave"))},
        "consumer of edge codes is 'code2wave'.*did you mean code2wav",
    ),
    "edge from nowhere": (
        {"edges": (replace(SPEECH, producer="thinkr"), CODES)},
        "producer of edge speech.*did you mean thinker",
    ),
    "entry to nowhere": (
        {"entries": (CHAT, replace(SAY, stage="talkr"))},
        "entry speech starts at 'talkr'.*did you mean talker",
    ),
    "no entry": ({"entries": ()}, "has no entry"),
    "no output": (
        {"stages": (replace(THINKER, output=None), TALKER, replace(CODE2WAV, output=None))},
        "no stage of pipeline sample has an output",
    ),
    "dead end": (
        {"stages": (THINKER, TALKER, replace(CODE2WAV, output=None))},
        "stage code2wav has neither an output nor an edge",
    ),
    "unreachable": (
        {"stages": (THINKER, TALKER, CODE2WAV, Stage("ear", StageKind.AR, MODEL, output="x"))},
        "no entry leads to stage ear",
    ),
    "edge option": (
        {"edges": (SPEECH, replace(CODES, options={"sizes": [1, 2]}))},
        "option 'sizes' of edge codes is a list",
    ),
    "a stream that does not stream": (
        {"edges": (SPEECH, replace(CODES, mode=EdgeMode.STREAM, streams=False))},
        "edge codes does not stream, and has mode stream; make it full",
    ),
    "join": (
        {"edges": (SPEECH, CODES, replace(CODES, name="again", producer="thinker"))},
        "stage code2wav has 2 incoming edges",
    ),
    "cycle": (
        {
            "edges": (
                SPEECH,
                CODES,
                replace(SPEECH, name="back", producer="code2wav", consumer="thinker"),
            )
        },
        "form a cycle: .*thinker -> talker -> code2wav",
    ),
    "loop": (
        {"edges": (SPEECH, CODES, replace(SPEECH, name="l", consumer="thinker"))},
        "form a cycle: thinker -> thinker",
    ),
    "model": (
        {"stages": (replace(THINKER, model="weights"), TALKER, CODE2WAV)},
        "model of stage thinker is 'weights'",
    ),
    "adapter": (
        {"edges": (replace(SPEECH, input_adapter="a.b:"), CODES)},
        "input_adapter of edge speech",
    ),
    "entry adapter": (
        {"entries": (CHAT, replace(SAY, adapter="a b:c"))},
        "adapter of entry speech",
    ),
    "code in engine": (
        {"stages": (replace(THINKER, engine={"hf_overrides": len}), TALKER, CODE2WAV)},
        "'hf_overrides' of stage thinker is a builtin_function_or_method",
    ),
    "code in sampling": (
        {"stages": (replace(THINKER, sampling={"logits_processors": [len]}), TALKER, CODE2WAV)},
        "sampling 'logits_processors' of stage thinker is a list",
    ),
    "sampling of a generation stage": (
        {"stages": (THINKER, TALKER, replace(CODE2WAV, sampling={"seed": 1}))},
        "code2wav is a generation stage and samples nothing",
    ),
    "atomic ar stage": (
        {"stages": (THINKER, replace(TALKER, atomic_inputs=True), CODE2WAV)},
        "talker is an ar stage.*remove atomic_inputs",
    ),
    "generation stage that cannot recompute": (
        {"stages": (THINKER, TALKER, replace(CODE2WAV, preemption=Preemption.FAIL))},
        "code2wav is a generation stage.*remove preemption",
    ),
    "unknown preemption": (
        {"stages": (THINKER, replace(TALKER, preemption="reserved"), CODE2WAV)},
        "talker has preemption 'reserved'; take a Preemption: recompute, fail, reserve",
    ),
    "sample rate": ({"sample_rate": 0}, "sample_rate is 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistake_is_named(case: str) -> None:
    """Every mistake is one sentence that names the thing."""
    changes, message = WRONG[case]
    with pytest.raises(TopologyError, match=message) as caught:
        replace(TOPOLOGY, **changes)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("mode", EdgeMode)
def test_both_modes_with_and_without_parts(mode: EdgeMode, split: bool) -> None:
    edge = replace(SPEECH, mode=mode, split=split)
    assert replace(TOPOLOGY, edges=(edge, CODES)).edge_into("talker") == edge


def test_two_streams_to_ar_stages_from_one_stage_are_refused() -> None:
    """Their requests could wait for each other for ever."""
    second = replace(TALKER, name="echo", output="echo")
    streams = (
        replace(SPEECH, mode=EdgeMode.STREAM, split=False),
        replace(SPEECH, name="again", consumer="echo", mode=EdgeMode.STREAM, split=False),
    )
    stages = (THINKER, TALKER, CODE2WAV, second)
    with pytest.raises(TopologyError, match="thinker feeds two ar stages by streams"):
        replace(TOPOLOGY, stages=stages, edges=(*streams, CODES))
    whole = replace(streams[1], mode=EdgeMode.FULL)
    assert replace(TOPOLOGY, stages=stages, edges=(streams[0], whole, CODES)).edge_into("echo")


def test_streams_are_followed_through_generation_stages() -> None:
    """A branch that reaches its ar stage through a generation stage is no other."""
    encoder = replace(CODE2WAV, name="encoder", output=None)
    echo = replace(TALKER, name="echo", output="echo")
    edges = (
        replace(SPEECH, mode=EdgeMode.STREAM, split=False),
        replace(SPEECH, name="frames", consumer="encoder", mode=EdgeMode.STREAM, split=False),
        replace(CODES, name="more", producer="encoder", consumer="echo", mode=EdgeMode.STREAM),
    )
    stages = (THINKER, TALKER, CODE2WAV, encoder, echo)
    with pytest.raises(TopologyError, match="thinker feeds two ar stages by streams"):
        replace(TOPOLOGY, stages=stages, edges=(*edges, CODES))


def test_text_only_stops_at_the_thinker() -> None:
    assert TOPOLOGY.path_from("chat", ["text"]) == (THINKER,)


def test_audio_passes_through_every_stage() -> None:
    assert TOPOLOGY.path_from("chat", ["audio"]) == (THINKER, TALKER, CODE2WAV)


def test_path_starts_at_the_entry() -> None:
    assert TOPOLOGY.path_from("speech", ("audio",)) == (TALKER, CODE2WAV)


def test_modality_that_the_entry_lacks() -> None:
    with pytest.raises(InvalidRequestError, match=r"entry speech.*'text'.*known: audio"):
        TOPOLOGY.path_from("speech", ("text", "audio"))


def test_misspelt_modality() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean audio"):
        TOPOLOGY.path_from("chat", ("adio",))


def test_no_modality() -> None:
    with pytest.raises(InvalidRequestError, match="gives text, audio"):
        TOPOLOGY.path_from("chat", ())


def test_unknown_entry() -> None:
    with pytest.raises(InvalidRequestError, match="no entry 'chta'; did you mean chat"):
        TOPOLOGY.path_from("chta", ("text",))


def test_unknown_stage() -> None:
    with pytest.raises(TopologyError, match="no stage 'voc'; known: code2wav, talker, thinker"):
        TOPOLOGY.stage("voc")


def test_edges_by_stage() -> None:
    assert TOPOLOGY.edges_from("talker") == (CODES,)
    assert TOPOLOGY.edge_into("talker") == SPEECH
    assert TOPOLOGY.edge_into("thinker") is None


@st.composite
def forests(draw: st.DrawFn) -> Topology:
    """Random valid topologies: each stage but the first hangs from an earlier one, or starts."""
    count = draw(st.integers(1, 7))
    stages, edges, entries = [], [], []
    for index in range(count):
        name = f"s{index}"
        stages.append(Stage(name, StageKind.AR, MODEL, output=f"m{index}"))
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        if parent is not None:
            target = ("a:B", "a:C")
            edges.append(Edge(f"e{index}", f"s{parent}", name, EdgeMode.FULL, *target))
        if parent is None or draw(st.booleans()):
            entries.append(Entry(name, name, "a:D"))
    order = draw(st.permutations(stages))
    return Topology("random", "", tuple(order), tuple(edges), tuple(entries))


@given(forests(), st.data())
def test_path_is_exactly_what_the_outputs_need(topology: Topology, data: st.DataObject) -> None:
    """A path starts at the entry, follows edges, holds every output and ends in outputs only."""
    entry = data.draw(st.sampled_from([e.name for e in topology.entries]))
    possible = topology.outputs_from(entry)
    wanted = data.draw(st.sets(st.sampled_from(possible), min_size=1))
    path = topology.path_from(entry, wanted)
    names = [stage.name for stage in path]
    assert names[0] == topology.entry(entry).stage
    assert wanted <= {stage.output for stage in path}
    for index, name in enumerate(names):
        if index:
            edge = topology.edge_into(name)
            assert edge is not None
            assert edge.producer in names[:index]
        consumers = {edge.consumer for edge in topology.edges_from(name)}
        assert consumers & set(names) or topology.stage(name).output in wanted
