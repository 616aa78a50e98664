"""The stages of `qwen2.5-omni` on a tiny checkpoint, and requests that go through all three."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch

from antiphon.core.options import InEdge, OutEdge
from antiphon.models.qwen2_5_omni.register import register_models
from antiphon.models.qwen2_5_omni.speak_input import SpeakInput, Speech
from antiphon.models.qwen2_5_omni.speak_output import SpeakOutput, SpokenRows
from antiphon.models.qwen2_5_omni.topology import TALKER, TOKEN2WAV, TOPOLOGY
from antiphon.payload.adapters import Input, StageContext, StepRows, layer_output
from antiphon.payload.types import Payload, Scalar
from antiphon.pipeline.audio import AudioClip
from antiphon.pipeline.topology import StageKind
from antiphon.stage.messages import Deliver, Step, Used
from antiphon.stage.spec import StageSpec
from tiny import BLOCK, Driven, tiny_spec

STREAM, FULL, CODES = "speak", "speak-at-once", "codes"
# Edges on which something is wrong.
BARE, LOUD, SHIFTED, UNTOLD = "bare", "loud", "shifted", "untold"
_SPEAK, _CODES = TOPOLOGY.edges
_RUN = "qwen2_5_omni"
THINKER_BLOCK = 2 * 3 * 1 * 32 * 4 * BLOCK  # K and V, layers, KV heads, head size, fp32
TALKER_BLOCK = 2 * 2 * 2 * 32 * 4 * BLOCK


def cramped(block_bytes: int, blocks: int) -> dict[str, Any]:
    """Chunked prefill, and so few blocks that a batch is preempted; one is upstream's."""
    return {
        "max_model_len": 192,
        "max_num_batched_tokens": 24,
        "kv_cache_memory_bytes": blocks * block_bytes,
    }


def thinker_spec(name: str, model: str, **over: Any) -> StageSpec:
    register_models()
    edges = (
        OutEdge(STREAM, _SPEAK.output_adapter, stream=True),
        OutEdge(FULL, _SPEAK.output_adapter),
        OutEdge(BARE, f"{__name__}:BareOutput", stream=True),
        OutEdge(LOUD, f"{__name__}:LoudOutput", stream=True),
        OutEdge(SHIFTED, _SPEAK.output_adapter, stream=True),
        OutEdge(UNTOLD, _SPEAK.output_adapter, stream=True),
    )
    deaf = {"audio": 0, "image": 0, "video": 0}
    own = {"limit_mm_per_prompt": deaf}
    return tiny_spec(name, model, _RUN, outputs=edges, **{**own, **over})


def talker_spec(name: str, model: str, **over: Any) -> StageSpec:
    register_models()
    into = (
        InEdge(STREAM, _SPEAK.input_adapter, stream=True),
        InEdge(FULL, _SPEAK.input_adapter),
        InEdge(BARE, _SPEAK.input_adapter, stream=True),
        InEdge(LOUD, _SPEAK.input_adapter, stream=True),
        InEdge(SHIFTED, f"{__name__}:ShiftedInput", stream=True),
        InEdge(UNTOLD, f"{__name__}:UntoldInput", stream=True),
    )
    out = (OutEdge(CODES, _CODES.output_adapter),)
    own = {key: TALKER.engine[key] for key in ("enable_prompt_embeds", "enable_prefix_caching")}
    spec = tiny_spec(name, model, _RUN, inputs=into, outputs=out, **{**own, **over})
    return msgspec.structs.replace(spec, hf_config=TALKER.config)


def token2wav_spec(name: str, model: str, **over: Any) -> StageSpec:
    register_models()
    own = {"runner": "pooling", "enable_chunked_prefill": False}
    spec = tiny_spec(
        name,
        model,
        _RUN,
        kind=StageKind.GENERATION,
        inputs=(InEdge(CODES, _CODES.input_adapter, dict(_CODES.options)),),
        **{**own, **over},
    )
    return msgspec.structs.replace(spec, hf_config=TOKEN2WAV.config)


class Conversation:
    """The orchestrator's part between stages that a test drives: refs down, room up.

    `stages` follow each other; a consuming request has the id of its producer with a `'` behind it.
    """

    def __init__(self, *stages: Driven) -> None:
        for stage in stages:
            stage.clear()
        self.stages = stages
        self.preempted: set[str] = set()  # requests that have lost their blocks
        self._seen = [0] * len(stages)

    def say(
        self,
        uid: str,
        prompt: Iterable[int],
        *,
        edge: str = STREAM,
        text_tokens: int = 16,
        talker_tokens: int = 40,
        params: Mapping[str, Any] | None = None,
        talker: Mapping[str, Any] | None = None,
        audio: tuple[AudioClip, ...] = (),
    ) -> None:
        """Greedy, as far as the stages go; `talker` are more of its sampling parameters."""
        thinker = self.stages[0]
        given = {"params": dict(params or {})}
        told = {"max_tokens": text_tokens, "ignore_eos": False}
        thinker.submit(uid, prompt, edges=(edge,), sampling=told, audio=audio, **given)
        told = {"max_tokens": talker_tokens, "ignore_eos": False, **(talker or {})}
        further = (CODES,) if len(self.stages) > 2 else ()
        self.stages[1].submit(f"{uid}'", waits_for=edge, edges=further, sampling=told, **given)
        if further:
            self.stages[2].submit(f"{uid}''", waits_for=CODES, **given)

    def forward(self) -> None:
        """Pass on what all have reported since the last call."""
        seen, self._seen = self._seen, [len(stage.events) for stage in self.stages]
        new = [stage.events[since:] for stage, since in zip(self.stages, seen, strict=True)]
        for number, events in enumerate(new):
            steps = [event for event in events if isinstance(event, Step)]
            items = [(f"{ref.uid}'", ref) for step in steps for ref in step.refs]
            if items:
                self.stages[number + 1].host.handle(Deliver(items))
            for step in steps:
                for edge, keys in step.used.items():
                    self.stages[number - 1].host.handle(Used(edge, keys))

    def run(self, limit: int = 4000) -> None:
        """Step all in turn until none has work."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"the stages still work after {limit} rounds")

    def step(self) -> bool:
        """Pass on what is known and step all stages that have work; whether any had."""
        self.forward()
        working = [stage.host for stage in self.stages if stage.host.has_work]
        for host in working:
            host.step()
            live = host.scheduler.requests.values()
            self.preempted |= {r.request_id for r in live if r.num_preemptions}
        return bool(working)

    def text(self, uid: str) -> list[int]:
        return self.stages[0].tokens(uid)

    def codes(self, uid: str) -> list[int]:
        """Sampled by the talker, the end included."""
        return self.stages[1].tokens(f"{uid}'")

    def sound(self, uid: str) -> torch.Tensor:
        """float32 [samples]; empty if nothing was said."""
        vocoder = self.stages[2]
        parts = [np.zeros(0, np.float32)]
        for event, frames in zip(vocoder.events, vocoder.frames, strict=True):
            for out in event.outputs if isinstance(event, Step) else ():
                if out.uid == f"{uid}''" and out.tensor is not None:
                    parts.append(np.frombuffer(frames[out.tensor.frame], np.float32))
        return torch.from_numpy(np.concatenate(parts))

    def errors(self, uid: str) -> list[str]:
        """Codes of what ended the request, by stage."""
        return [
            out.error.code
            for number, stage in enumerate(self.stages)
            for out in stage.outputs(uid + "'" * number)
            if out.error is not None
        ]

    def assert_empty(self) -> None:
        self.run()
        for stage in self.stages:
            stage.run()
            seen = stage.inspect()
            assert seen.error is None
            assert (seen.requests, seen.gated, seen.worker_requests) == (0, 0, 0)
            assert seen.connector_entries == 0


# --- what must not be: each breaks one part of the contract ------------------------------------


class BareOutput(SpeakOutput):
    """Rows are the hidden states alone."""

    def open(self, uid: str, params: Mapping[str, Scalar]) -> SpokenRows:
        return _BareRows(self._media, stream=self._stream)


class _BareRows(SpokenRows):
    def on_rows(self, rows: StepRows) -> list[Payload]:
        silence = {layer_output(0): torch.zeros_like(rows.side[layer_output(0)])}
        return super().on_rows(replace(rows, side={**rows.side, **silence}))


class LoudOutput(SpeakOutput):
    """The embeddings of sounds are added like those of words."""

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self._media = self._media[:0]


class ShiftedInput(SpeakInput):
    """The reply's tokens come one output token early."""

    def open(self, uid: str, params: Mapping[str, Scalar]) -> Speech:
        return _Shifted(self._setup, self._setup.speaker_bos["Chelsie"])


class _Shifted(Speech):
    _dropped = False

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        made = super().on_payload(payload, last=last)
        if made.rows is None or self._dropped:
            return made
        self._dropped = True
        rest = made.rows[1:]
        return replace(made, rows=rest if len(rest) else None)


class UntoldInput(SpeakInput):
    """The end of the text is not told: it is padding."""

    def open(self, uid: str, params: Mapping[str, Scalar]) -> Speech:
        setup = replace(self._setup, text_end=self._setup.text_pad)
        return Speech(setup, setup.speaker_bos["Chelsie"])
