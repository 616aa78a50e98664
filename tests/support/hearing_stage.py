"""The hearing stage of the `voice` pipeline, speech for it, and what transformers hears."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from hibari import Hibari
from scipy.signal import resample_poly
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from antiphon.models.voice.limits import HEARING_REPLY
from antiphon.models.voice.topology import TOPOLOGY
from antiphon.models.voice.weights import hearing_checkpoint
from antiphon.pipeline.audio import AudioClip
from antiphon.pipeline.defaults import fill_defaults
from antiphon.pipeline.deployment import Deployment
from antiphon.stage.resolve import resolve_stages
from antiphon.stage.spec import StageSpec
from tiny import Driven

RATE = 16_000
START, END, NO_TIMESTAMPS = 50257, 50256, 50362
SMALL_BLOCK = 32  # positions; the least that vLLM's attention on CPU takes
WINDOW_BLOCKS = -(-1500 // SMALL_BLOCK) + 1  # of a sound, and the first of its text

Wave = npt.NDArray[np.float32]


@functools.cache
def _speaker() -> Hibari:
    return Hibari()


@functools.cache
def speech(text: str) -> Wave:
    """`text` spoken, float32 [n] at 16 kHz."""
    made = np.asarray(_speaker()(text), np.float64)  # at 24 kHz
    return np.asarray(resample_poly(made, 2, 3), np.float32)


def block_bytes() -> int:
    """Of a small block: K and V of 4 layers, 384 wide, in fp32."""
    return 2 * 4 * 384 * 4 * SMALL_BLOCK


def clip(wave: Wave) -> AudioClip:
    return AudioClip.from_array(wave, RATE)


def spec(name: str, **over: Any) -> StageSpec:
    """The stage as a deployment without settings has it; `over` are EngineArgs."""
    deployment = fill_defaults(TOPOLOGY, Deployment(in_process=True), device="cpu")
    (found,) = resolve_stages(
        TOPOLOGY, deployment, run="hearing_tests", entries=["transcribe"]
    ).values()
    args = {**found.engine_args, **over}
    return msgspec.structs.replace(found, name=name, engine_args=args, check_every_step=True)


def submit(stage: Driven, uid: str, wave: Wave, **sampling: Any) -> None:
    given = {**TOPOLOGY.stage("hearing").sampling, "ignore_eos": False, **sampling}
    stage.submit(uid, [START], sampling=given, audio=(clip(wave),))


def heard(stage: Driven, waves: Sequence[Wave]) -> list[list[int]]:
    """The tokens of each, all at once; without the ones that open and end a transcript."""
    stage.clear()
    for index, wave in enumerate(waves):
        submit(stage, f"w{index}", wave)
    stage.run()
    return [plain(stage.tokens(f"w{index}")) for index in range(len(waves))]


def plain(tokens: list[int]) -> list[int]:
    return [token for token in tokens if token < END]


@functools.cache
def _reference() -> tuple[WhisperForConditionalGeneration, WhisperFeatureExtractor]:
    folder = hearing_checkpoint()
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    return model, WhisperFeatureExtractor.from_pretrained(folder)


def transcribed(wave: Wave) -> list[int]:
    """What transformers' `generate` writes, greedily."""
    model, extractor = _reference()
    features = extractor(wave, sampling_rate=RATE, return_tensors="pt").input_features
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = model.generate(features, max_new_tokens=HEARING_REPLY - 1, do_sample=False)
    return plain(made[0].tolist())
