"""The stages of `qwen3-tts` on the fixtures' checkpoint, and what official code made with it.

The fixtures are written by scripts/qwen3_tts_fixtures.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.torch import load_file

from antiphon.core.options import InEdge, OutEdge
from antiphon.models.qwen3_tts.register import register_models
from antiphon.models.qwen3_tts.settings import talker_facts
from antiphon.models.qwen3_tts.topology import CODE2WAV, TALKER, TOPOLOGY
from antiphon.pipeline.topology import StageKind
from antiphon.stage.messages import Deliver, Step, Used
from antiphon.stage.spec import StageSpec
from tiny import BLOCK, Driven, tiny_spec
from tiny_adapters import SEEN

FIXTURES = Path(__file__).parents[1] / "fixtures" / "qwen3_tts"
CHECKPOINT = str(FIXTURES / "checkpoint")
FULL, STREAM, TAP = "codes", "codes-streamed", "frames"
GROUPS = 4
SAMPLES = 48  # of a frame
BLOCK_BYTES = 2 * 2 * 1 * 32 * 4 * BLOCK  # K and V, layers, KV heads, head size, fp32

# Prompts in pieces; 4 blocks can be given out, one is upstream's.
CRAMPED: dict[str, Any] = {
    "max_model_len": 96,
    "max_num_batched_tokens": 16,
    "kv_cache_memory_bytes": 5 * BLOCK_BYTES,
}
_EDGE = TOPOLOGY.edges[0]
_RUN = "qwen3_tts"


@cache
def about() -> dict[str, Any]:
    """The fixtures' cases.json."""
    found: dict[str, Any] = json.loads((FIXTURES / "cases.json").read_text())
    return found


@cache
def references() -> dict[str, torch.Tensor]:
    """By "CASE.prompt", "CASE.trailing", "CASE.codes", "CASE.wave"."""
    return load_file(FIXTURES / "references.safetensors")


def case(name: str) -> dict[str, Any]:
    found: dict[str, Any] = about()["cases"][name]
    return found


def params_of(name: str) -> dict[str, Any]:
    """The case's request parameters; the tokenizer makes ids of an instruction."""
    given = case(name)
    params = {key: given[key] for key in ("speaker", "language", "instruct") if key in given}
    return {**params, "non_streaming_mode": not given["streaming"]}


def codes_of(name: str) -> list[list[int]]:
    """The frames that the official code made."""
    found: list[list[int]] = references()[f"{name}.codes"].tolist()
    return found


def plain_cases() -> list[str]:
    """Those that a request can ask for: others have ids for an instruction, but no text."""
    cases = about()["cases"].items()
    return [name for name, given in cases if "instruct" in given or "instruct_ids" not in given]


def talker_spec(name: str, model: str = CHECKPOINT, **over: Any) -> StageSpec:
    register_models()
    windows = {**_EDGE.options, "steady_frames": 5, "left_context": 30}
    out = (
        OutEdge(FULL, _EDGE.output_adapter),
        OutEdge(STREAM, _EDGE.output_adapter, windows, stream=True),
        OutEdge(TAP, "tiny_adapters:FramesOut"),
    )
    own = {key: TALKER.engine[key] for key in ("enable_prompt_embeds", "enable_prefix_caching")}
    spec = tiny_spec(name, model, _RUN, outputs=out, **{**own, **over})
    return msgspec.structs.replace(
        spec, hf_config=TALKER.config, prompt_adapter=TALKER.prompt_adapter
    )


def code2wav_spec(name: str, model: str = CHECKPOINT, **over: Any) -> StageSpec:
    register_models()
    edges = (
        InEdge(FULL, _EDGE.input_adapter),
        InEdge(STREAM, _EDGE.input_adapter, stream=True),
    )
    own = {"runner": "pooling", "enable_chunked_prefill": False}
    spec = tiny_spec(name, model, _RUN, kind=StageKind.GENERATION, inputs=edges, **{**own, **over})
    return msgspec.structs.replace(spec, hf_config=CODE2WAV.config)


class Speaking:
    """The orchestrator's part between a talker and its vocoder: refs down, room up."""

    def __init__(self, talker: Driven, code2wav: Driven) -> None:
        self.talker, self.code2wav = talker, code2wav
        self.preempted: set[str] = set()  # requests that have lost their blocks
        self._seen = [0, 0]
        for stage in (talker, code2wav):
            stage.clear()

    def say(
        self,
        uid: str,
        name: str,
        *,
        edge: str | None = FULL,
        params: Mapping[str, Any] | None = None,
        ids: Sequence[int] | None = None,
        **sampling: Any,
    ) -> None:
        """Speak the text of a case, greedily, for as many frames as the case has at most; `ids` in
        place of its own. Without an edge nobody is told: the talker alone has its tokens.
        """
        given = case(name)
        told = {
            "max_tokens": about()["max_frames"],
            "min_tokens": TALKER.sampling["min_tokens"],
            "ignore_eos": False,
            "repetition_penalty": given.get("repetition_penalty", 1.0),
            **talker_facts(Path(CHECKPOINT)).sampling,
            **sampling,
        }
        voice = params_of(name) if params is None else dict(params)
        spoken = given["ids"] if ids is None else ids
        edges = () if edge is None else (edge, TAP)
        self.talker.submit(uid, spoken, edges=edges, sampling=told, params=voice)
        if edge is not None:
            self.code2wav.submit(f"{uid}'", waits_for=edge)

    def run(self, limit: int = 4000) -> None:
        """Step both in turn until neither has work."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"the stages still work after {limit} rounds")

    def step(self) -> bool:
        """Pass on what is known and step both, if they have work; whether any had."""
        self._forward()
        working = [s.host for s in (self.talker, self.code2wav) if s.host.has_work]
        for host in working:
            host.step()
        live = self.talker.scheduler.requests.values()
        self.preempted |= {r.request_id for r in live if r.num_preemptions}
        return bool(working)

    def _forward(self) -> None:
        stages = (self.talker, self.code2wav)
        seen, self._seen = self._seen, [len(stage.events) for stage in stages]
        made, used = (
            [event for event in stage.events[since:] if isinstance(event, Step)]
            for stage, since in zip(stages, seen, strict=True)
        )
        refs = [ref for step in made for ref in step.refs]
        if items := [(f"{ref.uid}'", ref) for ref in refs if ref.edge != TAP]:
            self.code2wav.host.handle(Deliver(items))
        for step in used:
            for edge, keys in step.used.items():
                self.talker.host.handle(Used(edge, keys))

    def frames(self, uid: str) -> list[list[int]]:
        """What the talker made, in order, that of the end included."""
        rows = [row.tolist() for step in SEEN[TAP, uid].steps for row in step.side[TAP]]
        return [row for row in rows if row[0] >= 0]

    def spoken(self, uid: str) -> list[list[int]]:
        """Without the frame of the token that ends the utterance."""
        (end,) = talker_facts(Path(CHECKPOINT)).sampling["stop_token_ids"]  # type: ignore[misc]
        return [frame for frame in self.frames(uid) if frame[0] != end]

    def sounds(self, uid: str) -> list[torch.Tensor]:
        """What left the vocoder, chunk by chunk: float32 [samples]."""
        found = []
        for event, frames in zip(self.code2wav.events, self.code2wav.frames, strict=True):
            for out in event.outputs if isinstance(event, Step) else ():
                if out.uid == f"{uid}'" and out.tensor is not None:
                    found.append(np.frombuffer(frames[out.tensor.frame], np.float32))
        return [torch.from_numpy(sound.copy()) for sound in found]

    def sound(self, uid: str) -> torch.Tensor:
        return torch.cat([torch.empty(0), *self.sounds(uid)])

    def errors(self, uid: str) -> list[str]:
        """Codes of what ended the request, by stage."""
        found = self.talker.outputs(uid) + self.code2wav.outputs(f"{uid}'")
        return [out.error.code for out in found if out.error is not None]

    def assert_empty(self) -> None:
        self.run()
        self.talker.discard()  # what the tap announced
        for stage in (self.talker, self.code2wav):
            stage.run()
            seen = stage.inspect()
            assert seen.error is None
            assert (seen.requests, seen.gated, seen.worker_requests) == (0, 0, 0)
            assert seen.connector_entries == 0
