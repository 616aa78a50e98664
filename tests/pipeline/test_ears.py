"""Entries with an ear, edges that join: what is valid, the ways of requests, what is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from antiphon.core.kv_handoff import KvTransfer
from antiphon.errors import DeploymentError, EmptyInputError, InvalidRequestError, TopologyError
from antiphon.orchestrator.api import OmniRequest
from antiphon.pipeline.defaults import fill_defaults
from antiphon.pipeline.deployed import deployed
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.draw import draw
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.topology import Ear, EdgeMode, Topology
from antiphon.pipeline.wanted import stages_wanted
from antiphon.stage.resolve import HEARING, resolve_stages
from heard_pipeline import CLIP, EAR, HEAR, HEARD, HEARD_CHAT, WRITE_DOWN
from sample_pipeline import CODE2WAV, CODES, SAY, SPEECH, TALKER, THINKER

WRONG = {
    "an edge that streams": (
        {"edges": (replace(HEAR, mode=EdgeMode.STREAM), SPEECH, CODES)},
        "edge hear joins parts that bring one payload each, and has mode stream",
    ),
    "an edge that splits": (
        {"edges": (replace(HEAR, split=True), SPEECH, CODES)},
        "edge hear joins parts that bring one payload each, and is split",
    ),
    "an edge that is shared": (
        {"edges": (HEAR, SPEECH, replace(CODES, join=True, shared=True))},
        "edge codes joins parts and cannot be shared as well",
    ),
    "an edge with a cache": (
        {"edges": (replace(HEAR, kv=KvTransfer("prefill_finished")), SPEECH, CODES)},
        "edge hear joins parts and cannot be kv as well",
    ),
    "an edge to a generation stage": (
        {
            "edges": (replace(HEAR, consumer="code2wav"), SPEECH),
            "entries": (replace(HEARD_CHAT, ear=None, inputs=("text",)), SAY, WRITE_DOWN),
            "stages": (EAR, THINKER, replace(TALKER, output="words"), CODE2WAV),
        },
        "joins parts for code2wav, a generation stage",
    ),
    "an edge from the middle": (
        {"edges": (HEAR, replace(SPEECH, split=False, join=True), CODES)},
        "edge speech joins the parts of thinker, which is fed by another stage",
    ),
    "an ear that is not there": (
        {"entries": (replace(HEARD_CHAT, ear=Ear("eer", "a:B")), SAY, WRITE_DOWN)},
        "the ear of entry chat is 'eer'.*did you mean ear",
    ),
    "an ear without code": (
        {"entries": (replace(HEARD_CHAT, ear=Ear("ear", "a")), SAY, WRITE_DOWN)},
        "adapter of the ear of entry chat is 'a'",
    ),
    "an ear that leads elsewhere": (
        {"entries": (replace(HEARD_CHAT, ear=Ear("talker", "a:B")), SAY, WRITE_DOWN)},
        "the ear of entry chat is talker, from which no edge leads to thinker",
    ),
    "an ear of an entry that is deaf": (
        {"entries": (replace(HEARD_CHAT, inputs=("text",)), SAY, WRITE_DOWN)},
        "entry chat has an ear and takes no audio",
    ),
    "an output that is not there": (
        {"entries": (HEARD_CHAT, SAY, replace(WRITE_DOWN, outputs=("transcripts",)))},
        "entry transcribe is to give 'transcripts'.*did you mean transcript",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistake_is_named(case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises(TopologyError, match=message) as caught:
        replace(HEARD, **changes)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def names(topology: Topology, entry: str, *modalities: str, heard: bool = False) -> list[str]:
    return [s.name for s in topology.path_from(entry, modalities or None, heard=heard)]


def test_requests_with_sound_go_through_the_ear() -> None:
    assert names(HEARD, "chat") == ["thinker", "talker", "code2wav"]
    assert names(HEARD, "chat", heard=True) == ["ear", "thinker", "talker", "code2wav"]
    assert names(HEARD, "chat", "text", heard=True) == ["ear", "thinker"]
    assert names(HEARD, "chat", "transcript", heard=True) == ["ear"]


def test_a_transcript_is_no_part_of_an_answer_unless_it_is_asked_for() -> None:
    assert HEARD.outputs_from("chat") == ("text", "audio")
    assert HEARD.outputs_from("chat", heard=True) == ("transcript", "text", "audio")
    assert HEARD.outputs_from("transcribe") == ("transcript",)
    with pytest.raises(InvalidRequestError, match="of a request with audio, and this one has none"):
        HEARD.path_from("chat", ("text", "transcript"))


def test_an_entry_may_give_less_than_its_stages_do() -> None:
    assert names(HEARD, "transcribe", heard=True) == ["ear"]
    with pytest.raises(InvalidRequestError, match=r"entry transcribe.*does not give 'text'"):
        HEARD.path_from("transcribe", ("text",), heard=True)


@pytest.mark.parametrize(
    ("limits", "started"),
    [
        ({}, "ear thinker talker code2wav"),
        ({"inputs": ("text",)}, "thinker talker code2wav"),
        ({"entries": ("chat",), "inputs": ("text",), "modalities": ("text",)}, "thinker"),
        ({"entries": ("chat",), "modalities": ("text",)}, "ear thinker"),
        ({"entries": ("speech",)}, "talker code2wav"),
        ({"entries": ("transcribe",)}, "ear"),
        ({"modalities": ("transcript",)}, "ear"),
        ({"modalities": ("audio",)}, "ear thinker talker code2wav"),
        ({"inputs": ("audio",)}, "ear thinker talker code2wav"),
    ],
    ids=str,
)
def test_what_is_started(limits: dict[str, Sequence[str]], started: str) -> None:
    assert [stage.name for stage in stages_wanted(HEARD, **limits)] == started.split()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"inputs": ("sound",)}, "inputs names 'sound'"),
        ({"modalities": ("pictures",)}, "no entry of pipeline heard gives 'pictures'"),
        ({"entries": ("speech",), "modalities": ("text",)}, "entry speech.*'text'"),
        ({"entries": ("transcribe",), "inputs": ("text",)}, "transcribe takes audio, which inputs"),
    ],
    ids=str,
)
def test_what_cannot_be_started(limits: dict[str, Sequence[str]], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        stages_wanted(HEARD, **limits)


def test_the_consumer_of_a_join_takes_its_parts_as_a_stream() -> None:
    filled = fill_defaults(HEARD, Deployment(), device="cpu")
    found = resolve_stages(HEARD, filled, run="r1")
    (into,) = found["thinker"].inputs
    (out,) = found["ear"].outputs
    assert (into.name, into.stream) == ("hear", True)
    assert (out.name, out.stream) == ("hear", False)
    assert HEARING.items() <= found["ear"].engine_args.items()
    assert found["thinker"].engine_args["skip_tokenizer_init"] is True  # it hears nothing itself


def test_without_the_ear_the_thinker_waits_for_nobody() -> None:
    filled = fill_defaults(HEARD, Deployment(), device="cpu")
    assert resolve_stages(HEARD, filled, run="r1", inputs=("text",))["thinker"].inputs == ()


def test_an_operator_cannot_have_a_join_stream() -> None:
    given = Deployment(pipeline="heard", edges={"hear": EdgeDeployment(mode="stream")})
    with pytest.raises(DeploymentError, match="joins parts that bring one payload each"):
        deployed(HEARD, given)


def test_drawn_from_the_ear_on() -> None:
    drawn = draw(HEARD)
    assert "entry chat, requests with audio: sample:Heard" in drawn
    assert "entry transcribe: sample:Down (takes audio)" in drawn
    assert "entry chat: sample:Chat\n" in drawn
    assert "hear (full, one request of all parts)" in drawn


def test_the_way_of_a_request_depends_on_its_sounds() -> None:
    def path(request: OmniRequest) -> list[str]:
        return [stage.name for stage in request.check(HEARD)]

    text = ("text",)
    earlier = [{"role": "user", "content": "", "audio": [CLIP]}]
    assert path(OmniRequest(text="hi", modalities=text)) == ["thinker"]
    assert path(OmniRequest(audio=[CLIP], modalities=text)) == ["ear", "thinker"]
    assert path(OmniRequest(messages=earlier, text="hi", modalities=text)) == ["ear", "thinker"]
    assert path(OmniRequest(entry="transcribe", audio=[CLIP])) == ["ear"]


def test_an_entry_for_sound_alone_takes_no_text() -> None:
    with pytest.raises(InvalidRequestError, match="transcribe takes sound alone"):
        OmniRequest(entry="transcribe", text="hi", audio=[CLIP]).check(HEARD)
    with pytest.raises(EmptyInputError, match="there is none; give audio"):
        OmniRequest(entry="transcribe").check(HEARD)
