"""Talker and code2wav of Qwen3-Omni on a tiny checkpoint, each alone, as a test steps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from antiphon.core.options import OutEdge
from antiphon.core.prompt_plan import PromptPlan
from antiphon.models.checkpoint import read_rows
from antiphon.models.qwen3_omni.register import register_models
from antiphon.models.qwen3_omni.topology import CODE2WAV, TALKER
from antiphon.payload.adapters import FRAMES, Input, OutputNeeds, StageContext, StepRows
from antiphon.payload.types import Payload, Scalar
from antiphon.pipeline.topology import StageKind
from antiphon.stage.messages import Step
from antiphon.stage.spec import StageSpec
from qwen3_omni_oracle import Oracle, reference
from tiny import Driven, tiny_spec

GIVEN: list[Input] = []  # what requests are made of; the index is a request's one prompt id
MADE: dict[str, FramesKept] = {}  # a talker's frames by request


def talker_spec(name: str, folder: str, **over: Any) -> StageSpec:
    """A talker whose requests are given all of a `GIVEN` input at once."""
    register_models()
    edge = OutEdge("frames", f"{__name__}:FramesOut")
    spec = tiny_spec(name, folder, name, outputs=(edge,), enable_prompt_embeds=True, **over)
    return msgspec.structs.replace(
        spec, hf_config=TALKER.config, prompt_adapter=f"{__name__}:GivenIn"
    )


def code2wav_spec(name: str, folder: str, **over: Any) -> StageSpec:
    """A code2wav whose requests are windows of frames, put into one prompt by `GIVEN`."""
    register_models()
    spec = tiny_spec(
        name,
        folder,
        name,
        kind=StageKind.GENERATION,
        **{
            "runner": "pooling",
            "enable_chunked_prefill": False,
            "max_model_len": 1024,
            "max_num_batched_tokens": 1024,
            **over,
        },
    )
    return msgspec.structs.replace(
        spec, hf_config=CODE2WAV.config, prompt_adapter=f"{__name__}:GivenIn"
    )


def decode(stage: Driven, windows: Sequence[tuple[torch.Tensor, int]]) -> list[torch.Tensor]:
    """Samples of windows, submitted together: (int codes [frames, groups], frames of context)."""
    stage.clear()
    for number, (codes, left) in enumerate(windows):
        GIVEN.append(Input(plan=PromptPlan(tuple(codes.flatten().tolist()), extra={"left": left})))
        stage.submit(f"w{number}", [len(GIVEN) - 1])
    stage.run()
    waves = {
        out.uid: torch.frombuffer(bytearray(frames[out.tensor.frame]), dtype=torch.float32)
        for event, frames in zip(stage.events, stage.frames, strict=True)
        if isinstance(event, Step)
        for out in event.outputs
        if out.tensor is not None
    }
    return [waves[f"w{number}"] for number in range(len(windows))]


def talker_input(folder: str, oracle: Oracle, speaker: str = "ethan") -> Input:
    """The talker's prompt and rows, in the thinker's space, as transformers' `generate` makes them
    of a conversation with one message of the user.
    """
    config = reference(folder).config
    talker, thinker = config.talker_config, config.thinker_config
    ids = [config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id]
    bos, eos, pad = read_rows(folder, "thinker.model.embed_tokens.weight", ids)
    starts = [i for i, token in enumerate(oracle.prompt) if token == config.im_start_token_id]
    user, reply = starts[-2:]
    assert oracle.prompt[user + 1] == config.user_token_id
    sound = torch.tensor(oracle.prompt[user:reply]) == thinker.audio_token_id
    said = torch.where(sound[:, None], oracle.hidden[user:reply], oracle.embeds[user:reply])
    begun, first = oracle.embeds[reply : reply + 3], oracle.embeds[reply + 3]
    rows = torch.cat([said, begun, torch.stack([pad, pad, pad, pad, bos, first])])
    marks = torch.full((len(rows), 2), -1)
    marks[:, 0] = 0
    marks[: len(said), 0] = sound.long()
    marks[-6:, 1] = torch.tensor(
        [
            talker.codec_nothink_id,
            talker.codec_think_bos_id,
            talker.codec_think_eos_id,
            talker.speaker_id[speaker],
            talker.codec_pad_id,
            talker.codec_bos_id,
        ]
    )
    text = torch.cat([oracle.embeds[reply + 4 :], eos[None]])
    plan = PromptPlan((talker.codec_pad_id,) * len(rows), rows_local=True)
    return Input(plan=plan, prompt_rows=rows, prompt_marks=marks, rows=text, padding=pad)


def speak(stage: Driven, uid: str, made: Input, max_tokens: int, **sampling: Any) -> None:
    """Submit a talker request, greedy, that ends by itself or after so many tokens."""
    GIVEN.append(made)
    sampling = {"max_tokens": max_tokens, "ignore_eos": False, **sampling}
    stage.submit(uid, [len(GIVEN) - 1], edges=("frames",), sampling=sampling)


class GivenIn:
    """InputAdapterFactory: the input that the prompt's one id names."""

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> GivenIn:
        return self

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        return GIVEN[payload.token_ids[0]]

    def on_end(self) -> Input:
        raise AssertionError("a prompt is not empty")


class FramesOut:
    """OutputAdapterFactory that keeps frames in `MADE` and sends nothing."""

    needs = OutputNeeds(side_outputs=(FRAMES,))

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> FramesKept:
        MADE[uid] = FramesKept()
        return MADE[uid]


@dataclass
class FramesKept:
    """Frames of one request, in order."""

    frames: list[list[int]] = field(default_factory=list)

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        return []

    def on_rows(self, rows: StepRows) -> list[Payload]:
        found = rows.side[FRAMES]
        self.frames += found[found[:, 0] >= 0].tolist()
        return []

    def on_end(self) -> list[Payload]:
        return []
