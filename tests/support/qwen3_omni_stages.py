"""Qwen3-Omni's three stages on a tiny checkpoint, stepped by a test and wired by refs.

Each stage has its edges twice: as streams and, with `-whole` behind the name, as full edges. What
the talker makes of frames is seen on one more edge, and another one ships rows that are one place
off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import torch

from antiphon.core.frames import FrameChunker, Framing
from antiphon.core.options import InEdge, OutEdge
from antiphon.models.qwen3_omni.speak_output import REPLY, SpeakOutput, SpokenRows
from antiphon.models.qwen3_omni.topology import CODE2WAV, TALKER, THINKER, TOPOLOGY
from antiphon.payload.adapters import FRAMES, OutputNeeds, StageContext, StepRows
from antiphon.payload.types import Payload, Scalar, per_token
from antiphon.pipeline.audio import AudioClip
from antiphon.pipeline.topology import StageKind
from antiphon.stage.messages import Deliver, Step, Used
from antiphon.stage.spec import StageSpec
from qwen3_omni_oracle import reference
from tiny import Driven, tiny_spec

THINKER_BLOCK_BYTES = 3 * 2 * 2 * 32 * 4 * 32  # layers, K and V, KV heads, head size, fp32, tokens
TALKER_BLOCK_BYTES = 2 * 2 * 2 * 32 * 4 * 32

SEEN: dict[str, list[torch.Tensor]] = {}  # frames that each request of a talker has made, in order

_DECLARED = {edge.name: edge for edge in TOPOLOGY.edges}


class FramesSeen:
    """Sends nothing; the frames are in `SEEN`."""

    needs = OutputNeeds(side_outputs=(FRAMES,))

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> FramesSeen._Seen:
        SEEN[uid] = []
        return self._Seen(SEEN[uid])

    @dataclass
    class _Seen:
        made: list[torch.Tensor]

        def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
            return []

        def on_rows(self, rows: StepRows) -> list[Payload]:
            frames = rows.side[FRAMES]
            self.made += frames[frames[:, 0] >= 0].clone().unbind(0)
            return []

        def on_end(self) -> list[Payload]:
            return []


class ShiftedSpeakOutput(SpeakOutput):
    """A mistake: of the reply's tokens each row is that of the one before."""

    def open(self, uid: str, params: Mapping[str, Scalar]) -> SpokenRows:
        opened = super().open(uid, params)
        before: list[torch.Tensor] = []

        def late(payloads: list[Payload]) -> list[Payload]:
            found = []
            for payload in payloads:
                fields = dict(payload.fields)
                if REPLY in fields:
                    before.append(fields[REPLY].tensor)
                    fields[REPLY] = per_token(before[max(0, len(before) - 2)])
                found.append(replace(payload, fields=fields))
            return found

        made = opened.on_tokens
        opened.on_tokens = lambda token_ids: late(made(token_ids))  # type: ignore[method-assign]
        return opened


def _outs(name: str) -> tuple[OutEdge, ...]:
    edge = _DECLARED[name]
    options = dict(edge.options)
    return (
        OutEdge(name, edge.output_adapter, options, stream=True),
        OutEdge(f"{name}-whole", edge.output_adapter, options),
    )


def _ins(name: str) -> tuple[InEdge, ...]:
    edge = _DECLARED[name]
    options = dict(edge.options)
    return (
        InEdge(name, edge.input_adapter, options, stream=True),
        InEdge(f"{name}-whole", edge.input_adapter, options),
    )


def _spec(name: str, folder: str, *, blocks: int, block_bytes: int, **given: Any) -> StageSpec:
    config = given.pop("hf_config", None)
    args = {
        "max_model_len": 512,
        "max_num_batched_tokens": 512,
        "kv_cache_memory_bytes": blocks * block_bytes,
    }
    spec = tiny_spec(name, folder, "qwen3_omni", **{**args, **given})
    return msgspec.structs.replace(spec, hf_config=config)


def thinker_spec(name: str, folder: str, *, blocks: int = 64, **over: Any) -> StageSpec:
    """`over` are EngineArgs."""
    shifted = OutEdge("speak-shifted", "qwen3_omni_stages:ShiftedSpeakOutput", stream=True)
    media = {"audio": 0, "image": 0, "video": 0}
    return _spec(
        name,
        folder,
        blocks=blocks,
        block_bytes=THINKER_BLOCK_BYTES,
        outputs=(*_outs("speak"), shifted),
        hf_config=THINKER.config,
        **{"limit_mm_per_prompt": media, **over},
    )


def talker_spec(name: str, folder: str, *, blocks: int = 64, **over: Any) -> StageSpec:
    """`over` are EngineArgs."""
    speak = _DECLARED["speak"].input_adapter
    return _spec(
        name,
        folder,
        blocks=blocks,
        block_bytes=TALKER_BLOCK_BYTES,
        inputs=(*_ins("speak"), InEdge("speak-shifted", speak, stream=True)),
        outputs=(*_outs("codes"), OutEdge("frames", "qwen3_omni_stages:FramesSeen")),
        hf_config=TALKER.config,
        enable_prompt_embeds=True,
        **over,
    )


def code2wav_spec(name: str, folder: str, **over: Any) -> StageSpec:
    """`over` are EngineArgs."""
    return _spec(
        name,
        folder,
        blocks=2,
        block_bytes=TALKER_BLOCK_BYTES,
        kind=StageKind.GENERATION,
        inputs=_ins("codes"),
        hf_config=CODE2WAV.config,
        runner="pooling",
        enable_chunked_prefill=False,
        **over,
    )


@dataclass
class Line:
    """The orchestrator's part between stages that a test steps: refs down, room up.

    A request has the same id at every stage.
    """

    stages: Sequence[Driven]
    preempted: list[set[str]] = field(init=False)  # by stage: requests that have lost their blocks
    _seen: list[int] = field(init=False)

    def __post_init__(self) -> None:
        for stage in self.stages:
            stage.clear()
        self.preempted = [set() for _ in self.stages]
        self._seen = [0] * len(self.stages)

    def ask(
        self,
        uid: str,
        prompt: Sequence[int],
        text_tokens: int,
        talker_tokens: int,
        *,
        edges: tuple[str, str] = ("speak", "codes"),
        params: dict[str, Any] | None = None,
        text: dict[str, Any] | None = None,
        talker: dict[str, Any] | None = None,
        audio: tuple[AudioClip, ...] = (),
    ) -> None:
        """One request at all stages; `text` and `talker` are sampling parameters of theirs."""
        shared: dict[str, Any] = {"params": {"speaker": "ethan", **(params or {})}}
        sampling = [
            {"max_tokens": text_tokens, "ignore_eos": False, **(text or {})},
            {"max_tokens": talker_tokens, "ignore_eos": False, **(talker or {})},
        ]
        thinker, speaker, *vocoder = self.stages
        thinker.submit(uid, prompt, edges=edges[:1], sampling=sampling[0], audio=audio, **shared)
        speaker.submit(
            uid,
            waits_for=edges[0],
            edges=(*edges[1 : 1 + len(vocoder)], "frames"),
            sampling=sampling[1],
            **shared,
        )
        for stage in vocoder:
            stage.submit(uid, waits_for=edges[1], **shared)

    def frames(self, uid: str) -> torch.Tensor:
        """What the talker made for a request, int64 [n, groups]."""
        return torch.stack(SEEN[uid]).long()

    def forward(self) -> None:
        """Pass on what the stages have reported since the last call."""
        for index, stage in enumerate(self.stages):
            steps = [e for e in stage.events[self._seen[index] :] if isinstance(e, Step)]
            self._seen[index] = len(stage.events)
            items = [(r.uid, r) for step in steps for r in step.refs if r.edge != "frames"]
            if items:
                self.stages[index + 1].host.handle(Deliver(items))
            for step in steps:
                for edge, keys in step.used.items():
                    self.stages[index - 1].host.handle(Used(edge, keys))

    def step(self) -> bool:
        """Pass on what is known and step all stages that have work; whether any had."""
        self.forward()
        busy = [index for index, stage in enumerate(self.stages) if stage.host.has_work]
        for index in busy:
            stage = self.stages[index]
            stage.host.step()
            live = stage.scheduler.requests.values()
            self.preempted[index] |= {r.request_id for r in live if r.num_preemptions}
        return bool(busy)

    def run(self, limit: int = 4000) -> None:
        """Step until no stage has work."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"the stages still work after {limit} rounds")

    def waveform(self, uid: str) -> torch.Tensor:
        """All that the last stage said for a request, float32 [samples]."""
        return torch.cat([torch.empty(0), *self.chunks(uid)])

    def chunks(self, uid: str) -> list[torch.Tensor]:
        """The same, by step."""
        stage = self.stages[-1]
        found = []
        for event, frames in zip(stage.events, stage.frames, strict=True):
            if isinstance(event, Step):
                for output in event.outputs:
                    if output.uid == uid and output.tensor is not None:
                        raw = np.frombuffer(frames[output.tensor.frame], output.tensor.dtype)
                        found.append(torch.from_numpy(raw.copy()))
        return found

    def errors(self) -> list[str]:
        """What has ended requests with an error."""
        steps = [e for stage in self.stages for e in stage.events if isinstance(e, Step)]
        return [o.error.message for step in steps for o in step.outputs if o.error is not None]

    def assert_empty(self) -> None:
        """Nothing is alive anywhere, and every chunk has been used up."""
        for stage in self.stages:
            stage.assert_empty()
            assert stage.inspect().connector_entries == 0
            outflow = stage.scheduler.coordinator.outflow.statistics()
            assert all(edge.chunks == 0 for edge in outflow.values())


def windowed(folder: str, codes: torch.Tensor) -> torch.Tensor:
    """The sound of codes [frames, groups] cut as the stream is, each window in transformers."""
    codec = reference(folder).code2wav
    samples = int(codec.total_upsample)
    chunker = FrameChunker(Framing.from_options(_DECLARED["codes"].options, "codes"))
    waves = []
    with torch.inference_mode():
        for window in [*chunker.push(len(codes)), *chunker.flush()]:
            part = codes[window.start : window.end]
            wave = codec(part.T[None])[0, 0]
            lost = len(part) * samples - len(wave)
            waves.append(wave[max(0, window.left * samples - lost) :])
    return torch.cat(waves)
