"""Drawings of pipelines, compared character for character."""

from __future__ import annotations

from dataclasses import replace

from antiphon.pipeline.draw import draw, summary
from antiphon.pipeline.topology import Edge, EdgeMode, Entry, Stage, StageKind, Topology
from sample_pipeline import CHAT, CODES, SAY, SPEECH, TOPOLOGY

CHAIN = """\
sample: a pipeline for tests

● thinker (ar) ⇒ text
│   entry chat: sample:Chat
│   model: sample_pipeline:folder
│   sampling: max_tokens=64
│
└─ speech (full, one request per part)
     out: sample:Sentences
     in:  sample:Prompt
   ● talker (ar)
   │   entry speech: sample:Say
   │   model: sample_pipeline:folder
   │
   └─ codes (full, first=256)
        out: sample:Codes
        in:  sample:Frames
      ● code2wav (generation) ⇒ audio, 24000 Hz
          model: sample_pipeline:folder"""

FORK = """\
fork: two ways

● a (ar)
│   entry in: m:E
│   model: m:f
│
├─ ab (full)
│    out: m:O
│    in:  m:I
│  ● b (ar) ⇒ text
│      model: m:f
│
└─ ac (full)
     out: m:O
     in:  m:I
   ● c (ar) ⇒ image
       model: m:f"""


def test_chain() -> None:
    assert draw(TOPOLOGY) == CHAIN


def test_stream_edges_are_drawn_as_waves() -> None:
    edges = tuple(replace(edge, mode=EdgeMode.STREAM) for edge in (SPEECH, CODES))
    lines = [line.strip() for line in draw(replace(TOPOLOGY, edges=edges)).splitlines()]
    assert "└~ speech (stream, one request per part)" in lines
    assert "└~ codes (stream, first=256)" in lines


def test_fork() -> None:
    stages = tuple(
        Stage(name, StageKind.AR, "m:f", output=output)
        for name, output in (("a", None), ("b", "text"), ("c", "image"))
    )
    edges = tuple(Edge(f"a{name}", "a", name, EdgeMode.FULL, "m:O", "m:I") for name in ("b", "c"))
    topology = Topology("fork", "two ways", stages, edges, (Entry("in", "a", "m:E"),))
    assert draw(topology) == FORK


def test_what_an_entry_takes_beside_text() -> None:
    chat = replace(CHAT, inputs=("text", "audio"), params=("speaker",))
    lines = draw(replace(TOPOLOGY, entries=(chat, SAY))).splitlines()
    assert "│   entry chat: sample:Chat (also audio, speaker)" in lines


def test_one_line() -> None:
    assert summary(TOPOLOGY) == (
        "sample  thinker → talker → code2wav  (text, audio)  a pipeline for tests"
    )
