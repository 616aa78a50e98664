"""Tiny random checkpoints of Qwen3-Omni-MoE: the real layout at a ten-thousandth of the size.

The text and the sounds that they make mean nothing, but depend on every weight: the sizes of its
parts differ where they may, and no norm or bias is neutral, so that a wrong part shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

from antiphon.models.qwen3_omni.tiny_processor import (
    MEL_BINS,
    MERGE_SIZE,
    PATCH_SIZE,
    ROLES,
    SPECIALS,
    TEMPORAL_PATCH_SIZE,
    VOCABULARY,
    save_processor,
)

CODEBOOK = 48  # ids of codes
CODE_GROUPS = 5
RESERVED = 1024  # ids above the codes, of which transformers' `generate` samples only the end
CODEC_EOS = CODEBOOK + 6
SPEAKERS = {"ethan": CODEBOOK + 20, "chelsie": CODEBOOK + 21}
THINKER_HIDDEN = 96
TALKER_HIDDEN = 64
POSITIONS = 4096

# Spread of the weights: a language model's choices vary, and a waveform does not saturate.
_LM_RANGE = 0.2
_CODEC_RANGE = 0.08

# What vLLM's kernels for CPU can do: heads of 32, experts' sizes in multiples of 32.
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
_EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}


def write_tiny(folder: Path, seed: int = 5, codec_eos: int = CODEC_EOS) -> None:
    """Write a whole checkpoint, with tokenizer and processor, into `folder`.

    `codec_eos` is the id that ends speech. The id of a code that the model emits late ends its
    speech there; the default is never emitted. Weights do not depend on it.
    """
    tiny_model(seed, codec_eos).save_pretrained(folder)
    save_processor(folder)


def tiny_model(seed: int = 5, codec_eos: int = CODEC_EOS) -> Qwen3OmniMoeForConditionalGeneration:
    """transformers' model with random float32 weights."""
    torch.manual_seed(seed)
    model = Qwen3OmniMoeForConditionalGeneration(tiny_config(codec_eos))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # norms and biases
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif ".mlp.experts." in name or name.endswith(".mlp.gate.weight"):
                parameter.normal_(std=_LM_RANGE)  # transformers leaves the talker's unset
        model.talker.codec_head.weight[CODEC_EOS] = 0.0  # a logit that is never the largest
    return model


def tiny_config(codec_eos: int = CODEC_EOS) -> Qwen3OmniMoeConfig:
    """The configuration of a tiny checkpoint."""
    return Qwen3OmniMoeConfig(
        thinker_config=_thinker(),
        talker_config=_talker(codec_eos),
        code2wav_config=_code2wav(),
        im_start_token_id=SPECIALS["<|im_start|>"],
        im_end_token_id=SPECIALS["<|im_end|>"],
        tts_pad_token_id=SPECIALS["<tts_pad>"],
        tts_bos_token_id=SPECIALS["<tts_text_bos>"],
        tts_eos_token_id=SPECIALS["<tts_text_eod>"],
        system_token_id=ROLES["system"],
        user_token_id=ROLES["user"],
        assistant_token_id=ROLES["assistant"],
        enable_audio_output=True,
        dtype="float32",
        architectures=["Qwen3OmniMoeForConditionalGeneration"],
    )


def _rope() -> dict[str, Any]:
    return {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [6, 5, 5],  # half a head in all
        "mrope_interleaved": True,
    }


def _media_ids() -> dict[str, int]:
    return {
        "audio_token_id": SPECIALS["<|audio_pad|>"],
        "image_token_id": SPECIALS["<|image_pad|>"],
        "video_token_id": SPECIALS["<|video_pad|>"],
        "audio_start_token_id": SPECIALS["<|audio_start|>"],
        "vision_start_token_id": SPECIALS["<|vision_start|>"],
    }


def _thinker() -> dict[str, Any]:
    # The real checkpoints name a few keys that transformers has no default for and vLLM reads.
    return {
        **_media_ids(),
        "vision_end_token_id": SPECIALS["<|vision_end|>"],
        "audio_end_token_id": SPECIALS["<|audio_end|>"],
        "user_token_id": ROLES["user"],
        "initializer_range": _LM_RANGE,
        "audio_config": {
            "num_mel_bins": MEL_BINS,
            "initializer_range": _LM_RANGE,  # else all sounds have the same embeddings
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "d_model": 32,
            "output_dim": THINKER_HIDDEN,
            "max_source_positions": 1500,
            "n_window": 50,
            "n_window_infer": 400,
            "conv_chunksize": 500,
            "downsample_hidden_size": 16,
        },
        "vision_config": {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "patch_size": PATCH_SIZE,
            "spatial_merge_size": MERGE_SIZE,
            "temporal_patch_size": TEMPORAL_PATCH_SIZE,
            "out_hidden_size": THINKER_HIDDEN,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
            "image_size": 16,
            "apply_vit_abs_pos_embed": True,
        },
        "text_config": {
            **_HEADS,
            **_EXPERTS,
            "vocab_size": VOCABULARY,
            "hidden_size": THINKER_HIDDEN,
            "intermediate_size": 128,
            "num_hidden_layers": 3,
            "rope_parameters": _rope(),
            "max_position_embeddings": POSITIONS,
            "bos_token_id": None,
            "eos_token_id": SPECIALS["<|im_end|>"],
            "pad_token_id": None,
            "initializer_range": _LM_RANGE,
            "tie_word_embeddings": False,
        },
    }


def _talker(codec_eos: int) -> dict[str, Any]:
    return {
        **_media_ids(),
        "num_code_groups": CODE_GROUPS,
        "thinker_hidden_size": THINKER_HIDDEN,
        "accept_hidden_layer": 2,
        "codec_pad_id": CODEBOOK + 4,
        "codec_bos_id": CODEBOOK + 5,
        "codec_eos_token_id": codec_eos,
        "codec_nothink_id": CODEBOOK + 7,
        "codec_think_bos_id": CODEBOOK + 8,
        "codec_think_eos_id": CODEBOOK + 9,
        "speaker_id": SPEAKERS,
        "spatial_merge_size": MERGE_SIZE,
        "initializer_range": _LM_RANGE,
        "text_config": {
            **_HEADS,
            **_EXPERTS,
            "vocab_size": CODEBOOK + RESERVED,
            "hidden_size": TALKER_HIDDEN,
            "intermediate_size": 80,
            "shared_expert_intermediate_size": 64,
            "num_hidden_layers": 2,
            "rope_parameters": _rope(),
            "max_position_embeddings": POSITIONS,
            "initializer_range": _LM_RANGE,
        },
        "code_predictor_config": {
            **_HEADS,
            "vocab_size": CODEBOOK,
            "hidden_size": TALKER_HIDDEN,
            "intermediate_size": 112,
            "num_hidden_layers": 3,
            "num_code_groups": CODE_GROUPS,
            "max_position_embeddings": POSITIONS,
            "initializer_range": _LM_RANGE,
        },
    }


def _code2wav() -> dict[str, Any]:
    return {
        "codebook_size": CODEBOOK,
        "num_quantizers": CODE_GROUPS,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 2,
        "sliding_window": 8,
        "upsample_rates": [4, 3],
        "upsampling_ratios": [2, 2],
        "decoder_dim": 32,
        "initializer_range": _CODEC_RANGE,
        "layer_scale_initial_scale": 0.5,  # so that the attention matters
    }
