"""The two stages of `codec-lm` on tiny checkpoints, as a test steps them by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from antiphon.core.frames import FrameWindows, Framing
from antiphon.core.options import InEdge, OutEdge
from antiphon.models.codec_lm.configs import codec_config
from antiphon.models.codec_lm.register import register_models
from antiphon.models.codec_lm.topology import LM, TOPOLOGY
from antiphon.pipeline.topology import StageKind
from antiphon.stage.messages import Step
from antiphon.stage.spec import StageSpec
from codec_lm_tiny import HOP, SPEECH_END, Oracle, is_code
from tiny import BLOCK, Driven, tiny_spec
from tiny_streams import Chain

FULL, STREAM = "codes", "stream"
OPTIONS = {
    "initial_frames": 4,
    "steady_frames": 8,
    "frame_ramp": 2.0,
    "left_context": 6,
    "right_context": 3,
}
CODEC_LENGTH = 64
_BLOCK_BYTES = 2 * 2 * 1 * 32 * 4 * BLOCK  # K and V, layers, KV heads, head size, fp32
CRAMPED: dict[str, Any] = {
    "max_model_len": 160,
    "max_num_batched_tokens": 24,
    "kv_cache_memory_bytes": 8 * _BLOCK_BYTES,
}
(_EDGE,) = TOPOLOGY.edges


def lm_spec(name: str, model: str, run: str = "codec_lm", **over: Any) -> StageSpec:
    edges = (
        OutEdge(FULL, _EDGE.output_adapter),
        OutEdge(STREAM, _EDGE.output_adapter, dict(OPTIONS), stream=True),
    )
    over = {"logits_processors": LM.engine["logits_processors"], **over}
    return tiny_spec(name, model, run, outputs=edges, **over)


def codec_spec(name: str, model: str, run: str = "codec_lm", **over: Any) -> StageSpec:
    register_models()
    edges = (
        InEdge(FULL, _EDGE.input_adapter),
        InEdge(STREAM, _EDGE.input_adapter, dict(OPTIONS), stream=True),
    )
    over = {"max_model_len": CODEC_LENGTH, **over}
    return tiny_spec(
        name,
        model,
        run,
        kind=StageKind.GENERATION,
        inputs=edges,
        runner="pooling",
        hf_overrides=codec_config,
        enable_chunked_prefill=False,
        **over,
    )


class Speech(Chain):
    """A language model and a codec, with the requests that go through both."""

    def __init__(self, lm: Driven, codec: Driven) -> None:
        lm.clear()
        codec.clear()
        super().__init__(lm, codec)

    def speak(self, uid: str, prompt: list[int], edge: str = FULL, max_tokens: int = 48) -> None:
        sampling = {
            "max_tokens": max_tokens,
            "ignore_eos": False,
            "stop_token_ids": [SPEECH_END],
        }
        self.producer.submit(uid, prompt, edges=(edge,), sampling=sampling)
        self.consumer.submit(f"{uid}'", waits_for=edge)

    def heard(self, uid: str) -> torch.Tensor:
        """All samples of a request, in the order of the steps, float32 [n]."""
        parts = [np.zeros(0, np.float32)]
        for event, frames in zip(self.consumer.events, self.consumer.frames, strict=True):
            if isinstance(event, Step):
                for out in event.outputs:
                    if out.uid == f"{uid}'" and out.tensor is not None:
                        parts.append(np.frombuffer(frames[out.tensor.frame], np.float32))
        return torch.from_numpy(np.concatenate(parts))

    def errors(self, uid: str) -> list[str]:
        """Codes of what ended the request at the codec."""
        outputs = self.consumer.outputs(f"{uid}'")
        return [out.error.code for out in outputs if out.error is not None]

    def assert_empty(self) -> None:
        for stage in (self.producer, self.consumer):
            stage.run()
            seen = stage.inspect()
            assert seen.error is None
            assert (seen.requests, seen.gated, seen.worker_requests) == (0, 0, 0)
            assert seen.connector_entries == 0


def windowed(oracle: Oracle, token_ids: Sequence[int], *, hop: int = HOP) -> torch.Tensor:
    """transformers' `decode` of each window of a stream, cut to its new codes, [n]."""
    codes = [token for token in token_ids if is_code(token)]
    windows: FrameWindows[int] = FrameWindows(Framing.from_options(OPTIONS, "the test"))
    parts = []
    for window, kept in [*windows.push(codes), *windows.flush()]:
        end = len(kept) - window.right
        parts.append(oracle.sound(kept)[hop * window.left : hop * end])
    return torch.cat(parts) if parts else torch.zeros(0)
