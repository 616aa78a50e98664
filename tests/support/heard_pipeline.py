"""The sample pipeline with an ear: requests with sound go through a stage that writes it down."""

from __future__ import annotations

from dataclasses import replace

from antiphon.pipeline.audio import AudioClip
from antiphon.pipeline.topology import Ear, Edge, EdgeMode, Entry, Stage, StageKind
from sample_pipeline import CHAT, CODES, MODEL, SAY, SPEECH, TOPOLOGY

EAR = Stage("ear", StageKind.AR, MODEL, output="transcript")
HEAR = Edge("hear", "ear", "thinker", EdgeMode.FULL, "sample:Said", "sample:Turn", join=True)
HEARD_CHAT = replace(CHAT, inputs=("text", "audio"), ear=Ear("ear", "sample:Heard"))
WRITE_DOWN = Entry("transcribe", "ear", "sample:Down", inputs=("audio",), outputs=("transcript",))
HEARD = replace(
    TOPOLOGY,
    name="heard",
    stages=(EAR, *TOPOLOGY.stages),
    edges=(HEAR, SPEECH, CODES),
    entries=(HEARD_CHAT, SAY, WRITE_DOWN),
)

CLIP = AudioClip(bytes(32_000), 16_000)  # a second
