"""Tiny random checkpoints of Qwen2.5-Omni: the real layout at a ten-thousandth of the size.

The text and the sounds that they make mean nothing, but depend on every weight: the sizes of its
parts differ where they may, and no norm or bias is neutral, so that a wrong part shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

from antiphon.models.qwen2_5_omni.params import SPEAKERS_FILE
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

CODEBOOK = 64  # ids of codes
CODEC = {  # ids behind them
    "tts_codec_mask_token_id": CODEBOOK + 4,
    "tts_codec_start_token_id": CODEBOOK + 5,
    "tts_codec_end_token_id": CODEBOOK + 6,
    "tts_codec_pad_token_id": CODEBOOK + 7,
}
CODEC_VOCABULARY = CODEBOOK + 16
SPEAKERS = {"Chelsie": SPECIALS["<tts_text_bos>"], "Ethan": SPECIALS["<tts_pad>"]}
THINKER_HIDDEN = 96
TALKER_HIDDEN = 64
POSITIONS = 4096

# Spread of the weights: a language model's choices vary, and a waveform does not saturate.
_LM_RANGE = 0.2
_CODEC_RANGE = 0.1


def write_tiny(
    folder: Path,
    seed: int = 0,
    text_end: int = SPECIALS["<|im_end|>"],
    codec_end: int = CODEC["tts_codec_end_token_id"],
) -> None:
    """Write a whole checkpoint, with tokenizer, processor and speakers, into `folder`.

    `text_end` and `codec_end` are the ids that end an answer and its speech. Weights do not depend
    on them: with ids that the model emits late, both end there.
    """
    torch.manual_seed(seed)
    config: Any = tiny_config(text_end, codec_end)
    model = Qwen2_5OmniForConditionalGeneration(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    torch.save({name: _speaker(token) for name, token in SPEAKERS.items()}, folder / SPEAKERS_FILE)
    save_processor(folder, "Qwen2_5OmniProcessor")


def tiny_config(text_end: int, codec_end: int) -> Qwen2_5OmniConfig:
    """The configuration of a tiny checkpoint."""
    return Qwen2_5OmniConfig(
        thinker_config=_thinker(text_end),
        talker_config=_talker(codec_end),
        token2wav_config=_token2wav(),
        enable_audio_output=True,
        dtype="float32",
        architectures=["Qwen2_5OmniForConditionalGeneration"],
    )


def _speaker(bos_token: int) -> dict[str, Any]:
    return {
        "bos_token": bos_token,
        "cond": torch.randn(1, 12),
        "ref_mel": torch.randn(1, 30, 8),
    }


def _rope() -> dict[str, Any]:
    # The sections are half a head in all.
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}


def _media_ids() -> dict[str, int]:
    return {
        "audio_token_index": SPECIALS["<|audio_pad|>"],
        "image_token_index": SPECIALS["<|image_pad|>"],
        "video_token_index": SPECIALS["<|video_pad|>"],
        "audio_start_token_id": SPECIALS["<|audio_start|>"],
        "audio_end_token_id": SPECIALS["<|audio_end|>"],
        "vision_start_token_id": SPECIALS["<|vision_start|>"],
        "vision_end_token_id": SPECIALS["<|vision_end|>"],
    }


def _thinker(text_end: int) -> dict[str, Any]:
    return {
        **_media_ids(),
        "user_token_id": ROLES["user"],
        "pad_token_id": None,
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
            "n_window": 100,
        },
        "vision_config": {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "patch_size": PATCH_SIZE,
            "out_hidden_size": THINKER_HIDDEN,
            "spatial_merge_size": MERGE_SIZE,
            "temporal_patch_size": TEMPORAL_PATCH_SIZE,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
        "text_config": {
            "vocab_size": VOCABULARY,
            "hidden_size": THINKER_HIDDEN,
            "intermediate_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,  # of 32, the least that vLLM's attention for CPU knows
            "num_key_value_heads": 1,
            "rope_parameters": _rope(),
            "max_position_embeddings": POSITIONS,
            "bos_token_id": None,
            "eos_token_id": text_end,
            "pad_token_id": None,
            "initializer_range": _LM_RANGE,
            "tie_word_embeddings": False,
        },
    }


def _talker(codec_end: int) -> dict[str, Any]:
    return {
        **_media_ids(),
        **CODEC,
        "tts_codec_end_token_id": codec_end,
        "tts_text_start_token_id": SPECIALS["<tts_text_bos>"],
        "tts_text_end_token_id": SPECIALS["<tts_text_eod>"],
        "tts_text_pad_token_id": SPECIALS["<tts_pad>"],
        "vocab_size": CODEC_VOCABULARY,
        "embedding_size": THINKER_HIDDEN,
        "hidden_size": TALKER_HIDDEN,
        "head_dim": 32,  # in all more than the hidden size, as in the real checkpoints
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "rope_parameters": _rope(),
        "max_position_embeddings": POSITIONS,
        "initializer_range": _LM_RANGE,
        "tie_word_embeddings": False,
        "spatial_merge_size": MERGE_SIZE,
    }


def _token2wav() -> dict[str, Any]:
    return {
        "dit_config": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "head_dim": 16,
            "ff_mult": 2,
            "emb_dim": 16,
            "repeats": 2,
            "num_embeds": CODEC_VOCABULARY,
            "mel_dim": 8,
            "look_ahead_layers": [1],
            "look_backward_layers": [0],
            "block_size": 24,
            "enc_emb_dim": 12,
            "enc_dim": 16,
            "enc_channels": [16, 16, 16, 16, 48],
            "enc_kernel_sizes": [5, 3, 3, 3, 1],
            "enc_dilations": [1, 2, 3, 4, 1],
            "enc_attention_channels": 8,
            "enc_res2net_scale": 2,
            "enc_se_channels": 8,
            "max_position_embeddings": 1024,
            "dropout": 0.0,
            "initializer_range": _CODEC_RANGE,
        },
        "bigvgan_config": {
            "mel_dim": 8,
            "upsample_initial_channel": 32,
            "resblock_kernel_sizes": [3, 7],
            "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5]],
            "upsample_rates": [4, 2],
            "upsample_kernel_sizes": [8, 4],
            "initializer_range": _CODEC_RANGE,
        },
    }
