"""Pipelines that hand a KV cache on, in the shapes of prefill and decode and of a painter, and one
whose sentences are spoken several times.
"""

from __future__ import annotations

from dataclasses import replace

from antiphon.core.kv_handoff import KvTransfer
from antiphon.pipeline.topology import Edge, EdgeMode, Entry, Stage, StageKind, Topology
from sample_pipeline import CODES, MODEL, SPEECH, TOPOLOGY

PREFILL = Stage("prefill", StageKind.AR, MODEL, sampling={"max_tokens": 1})
DECODE = Stage("decode", StageKind.AR, MODEL, output="text", sampling={"max_tokens": 64})
CACHE = Edge(
    "cache",
    "prefill",
    "decode",
    EdgeMode.FULL,
    "sample:Cache",
    "sample:Resume",
    kv=KvTransfer("prefill_finished"),
)
HALVES = Topology(
    "halves",
    "prompts and answers on two engines",
    (PREFILL, DECODE),
    (CACHE,),
    (Entry("chat", "prefill", "sample:Chat"),),
)

THINKER = Stage("thinker", StageKind.AR, MODEL, output="text")
PAINTER = Stage("painter", StageKind.GENERATION, MODEL, output="image")
SCENE = Edge(
    "scene",
    "thinker",
    "painter",
    EdgeMode.FULL,
    "sample:Scene",
    "sample:Look",
    kv=KvTransfer("special_token", token_id=7),
    shared=True,
)
PAINTING = Topology(
    "painting",
    "text, and pictures of it",
    (THINKER, PAINTER),
    (SCENE,),
    (Entry("chat", "thinker", "sample:Chat"), Entry("draw", "painter", "sample:Draw")),
)

VOICES = replace(TOPOLOGY, edges=(SPEECH, replace(CODES, shared=True)))
