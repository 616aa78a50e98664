"""The codecs whose decoder can be the `codec` stage, and what a checkpoint's config.json says.

They are transformers' own models with one codebook: a code is a frame, and `decode` makes the sound
of codes alone. A codec of this kind that is not here needs a line in `CODECS`. Neither torch nor
transformers is imported here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.errors import ModelUnavailableError
from antiphon.models.json_files import read_object
from antiphon.pipeline.facts import CheckpointFacts

CODECS = {"xcodec2": "sampling_rate", "neucodec": "output_sampling_rate"}
"""By transformers' `model_type`: the field of its config that is the rate of what it decodes."""

DECODING = ("quantizer", "acoustic_decoder")
"""The parts of transformers' module that decoding takes; the rest are encoders."""


@dataclass(frozen=True, slots=True)
class CodecFacts:
    """A codec as its config describes it."""

    num_codes: int  # codes are numbered from 0
    sample_rate: int  # Hz


def read_codec(folder: str | Path) -> CodecFacts:
    """What the config.json in a checkpoint's folder says. Raises ModelUnavailableError."""
    file = Path(folder) / "config.json"
    return codec_facts(read_object(file), str(file))


def codec_facts(config: dict[str, Any], owner: str) -> CodecFacts:
    """What a config, as a dict, says. Raises ModelUnavailableError, which names `owner`."""
    model_type = config.get("model_type")
    if model_type not in CODECS:
        raise ModelUnavailableError(
            f"{owner} says model_type {model_type!r}, which is no codec that can be decoded here"
            f" ({', '.join(CODECS)}); give a codec's checkpoint in transformers' format"
        )
    levels, rate = config.get("quantization_levels"), config.get(CODECS[model_type])
    if not isinstance(levels, list | tuple) or not all(
        type(level) is int and level > 0 for level in levels
    ):
        raise ModelUnavailableError(f"{owner} has no list of quantization_levels, but {levels!r}")
    if type(rate) is not int or rate < 1:
        raise ModelUnavailableError(f"{owner}: {CODECS[model_type]} is {rate!r}; give it in Hz")
    return CodecFacts(math.prod(levels), rate)


def checkpoint_facts(folder: Path) -> CheckpointFacts:
    """`Stage.facts` of the codec: the rate of its sound. Raises ModelUnavailableError."""
    return CheckpointFacts(sample_rate=read_codec(folder).sample_rate)
