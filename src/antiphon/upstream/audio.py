"""Seam: vLLM's own input processing, for prompts with audio.

A stage is given token ids in which one token stands for each clip. Upstream's multimodal processor
of the model makes features of the clips and puts as many tokens in place of that one as the model's
encoder gives embeddings. Only what an `EngineCoreRequest` needs of that is taken out.

A model of encoder and decoder (Whisper) attends to its clip from outside the prompt: it has one
clip, and no token stands for it. Of a longer clip than its encoder takes it hears the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.inputs import MultiModalInput, TokensPrompt
from vllm.multimodal.audio import AudioResampler
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.engine.input_processor import InputProcessor

from antiphon.errors import (
    AdapterError,
    DeploymentError,
    InputTooLongError,
    InvalidRequestError,
)
from antiphon.pipeline.audio import AudioClip

_AUDIO = "audio"  # upstream's name of the modality


@dataclass(frozen=True, slots=True)
class HeardPrompt:
    """A prompt with its clips' tokens, and the features that the model's encoder is given."""

    token_ids: list[int]
    features: list[MultiModalFeatureSpec]


def hears(config: VllmConfig) -> bool:
    """Whether upstream can be given audio: a model with inputs other than text, and a tokenizer,
    without which upstream makes no processor.
    """
    model = config.model_config
    return bool(model.supports_multimodal_inputs) and not model.skip_tokenizer_init


class AudioProcessor:
    """Upstream's processor of one model; it blocks. Made where `hears`."""

    def __init__(self, config: VllmConfig) -> None:
        self._inputs = InputProcessor(config)
        self._renderer = self._inputs.renderer
        processor = self._renderer.get_mm_processor()
        self.max_clips = int(processor.info.allowed_mm_limits.get(_AUDIO, 0))
        self._max_len = config.model_config.max_model_len
        self.cross_attends = bool(config.model_config.is_encoder_decoder)
        # Upstream's parser resamples too, by a library that is left out of the locks; at its own
        # rate it does nothing. A model without a rate of its own takes clips as they are.
        rate = processor.data_parser.audio_resampler.target_sr
        self._resampler = AudioResampler(rate, method="scipy")

    def prompt(self, token_ids: Sequence[int], clips: Sequence[AudioClip]) -> HeardPrompt:
        """Put the clips into the prompt.

        Raises InvalidRequestError for clips that the model cannot take, InputTooLongError if the
        prompt grows over the model's length or a clip is over what its encoder may put out at a
        time, AdapterError for a prompt without a place for each clip. ValueError as upstream does.
        """
        if len(clips) > self.max_clips:
            raise InvalidRequestError(
                f"the prompt has {len(clips)} clips of audio; at most {self.max_clips} may be given"
                " (limit_mm_per_prompt of the stage)"
            )
        given = self._render(token_ids, clips)
        ids, places = given["prompt_token_ids"], given["mm_placeholders"][_AUDIO]
        self._check_sizes(ids, places)
        if not self.cross_attends:
            self._check_places(ids, places, len(clips))
        # The parameters are of no account: the stage makes its own.
        request = self._inputs.process_inputs(
            "audio", given, SamplingParams(max_tokens=1), ("generate",)
        )
        return HeardPrompt(list(ids), list(request.mm_features or []))

    def close(self) -> None:
        """End upstream's threads."""
        self._renderer.shutdown()

    def _render(self, token_ids: Sequence[int], clips: Sequence[AudioClip]) -> MultiModalInput:
        prompt = TokensPrompt(
            prompt_token_ids=list(token_ids),
            multi_modal_data={_AUDIO: [self._samples(clip) for clip in clips]},
        )
        try:
            # The cache beside that is a pair, one half in the engine, which must see every request
            # that its other half has seen; some are refused in between.
            (given,) = self._renderer.render_cmpl([prompt], skip_mm_cache=True)
        except AssertionError as error:
            raise AdapterError(
                f"the prompt has no place for each of its {len(clips)} clips: {error}"
            ) from error
        rendered: MultiModalInput = given
        return rendered

    def _samples(self, clip: AudioClip) -> tuple[npt.NDArray[np.floating[Any]], float]:
        rate = self._resampler.target_sr
        samples = clip.array()
        if rate is None:
            return samples, clip.sample_rate
        try:
            return self._resampler.resample(samples, orig_sr=clip.sample_rate), rate
        except ImportError as error:
            raise DeploymentError(
                f"audio of {clip.sample_rate} Hz has to be resampled, which needs scipy; install"
                " antiphon[audio]"
            ) from error

    def _check_sizes(self, ids: list[int], places: Sequence[PlaceholderRange]) -> None:
        if len(ids) >= self._max_len:
            raise InputTooLongError(
                f"the prompt takes {len(ids)} tokens with its audio; the stage's model takes"
                f" {self._max_len}, an answer's first token included: shorten it"
            )
        largest = max(place.get_num_embeds() for place in places)
        if largest > (most := self._inputs.mm_encoder_cache_size):
            raise InputTooLongError(
                f"a clip of audio takes {largest} tokens; the stage takes {most} at a time: give"
                " shorter clips, or raise its max_num_batched_tokens"
            )

    def _check_places(self, ids: list[int], places: Sequence[PlaceholderRange], clips: int) -> None:
        # Upstream's positions of some models count on a token behind a clip, and the step that
        # computes them would end everybody's requests.
        followed = {place.offset for place in places} | {len(ids)}
        if not followed.isdisjoint(place.offset + place.length for place in places):
            raise AdapterError(
                "a clip is followed by another one or by the prompt's end; put a token between them"
            )
        heard = [position for place in places for position in _positions(place)]
        tokens = {ids[position] for position in heard}
        if sum(token in tokens for token in ids) != len(heard):
            raise AdapterError(f"the prompt has more places for audio than its {clips} clips")


def _positions(place: PlaceholderRange) -> list[int]:
    """The positions that get an embedding of the clip."""
    inside = range(place.offset, place.offset + place.length)
    if place.is_embed is None:
        return list(inside)
    return [position for position, here in zip(inside, place.is_embed, strict=True) if here]
