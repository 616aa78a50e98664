"""Tiny checkpoints of a language model that writes codes and of its codec, and transformers as the
oracle of both.

The tokenizer knows bytes and the special tokens of Llasa, 256 codes among them; nothing is merged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModel as Codec
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    NeuCodecConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Xcodec2Config,
)

LEVELS = [4, 4, 4, 4]
NUM_CODES = 256
BYTES = 256
NAMES = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|TEXT_UNDERSTANDING_START|>",
    "<|TEXT_UNDERSTANDING_END|>",
    "<|SPEECH_GENERATION_START|>",
    "<|SPEECH_GENERATION_END|>",
)
BOS, EOT = BYTES, BYTES + 3
SPEECH_END = BYTES + 7
FIRST_CODE = BYTES + len(NAMES) + 24  # others lie between
VOCAB = FIRST_CODE + NUM_CODES + 32  # and behind
MAX_POSITIONS = 1024
HOP = 4

# Llama 3's, without its date and tools.
TEMPLATE = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
BACKBONES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
}


def lm_model(folder: Path, backbone: str, *, seed: int = 0, **config: Any) -> str:
    """Write a language model with its tokenizer; the path. `config` are fields of config.json."""
    config_class, model_class = BACKBONES[backbone]
    torch.manual_seed(seed)
    model = model_class(
        config_class(
            vocab_size=VOCAB,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=MAX_POSITIONS,
            bos_token_id=BOS,
            eos_token_id=EOT,
            pad_token_id=None,
            initializer_range=0.2,
            tie_word_embeddings=False,
            dtype="float32",
        )
    ).eval()
    with torch.no_grad():  # so that some requests end by themselves, and not all at once
        model.lm_head.weight[SPEECH_END] *= 1.3
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    if config:
        amend(folder, **config)
    return str(folder)


def amend(folder: Path, **fields: Any) -> None:
    """Write other values into config.json; None removes a field."""
    file = folder / "config.json"
    found = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({k: v for k, v in found.items() if v is not None}))


def _write_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    between = [f"<|reserved_{i}|>" for i in range(FIRST_CODE - BYTES - len(NAMES))]
    codes = [f"<|s_{i}|>" for i in range(NUM_CODES)]
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True) for name in (*NAMES, *between, *codes)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=NAMES[0], eos_token=NAMES[3]
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def codec_model(folder: Path, model_type: str = "xcodec2", *, seed: int = 1, **config: Any) -> str:
    """Write a codec; the path."""
    config_class: Any = {"xcodec2": Xcodec2Config, "neucodec": NeuCodecConfig}[model_type]
    torch.manual_seed(seed)
    semantic = {
        "model_type": "wav2vec2-bert",
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "feature_projection_input_dim": 160,
        "conv_depthwise_kernel_size": 3,
        "vocab_size": None,
    }
    fields = {
        "hidden_size": 64,  # its group norm has 32 groups, which want 2 values of one code
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "encoder_hidden_size": 4,
        "downsampling_ratios": [2, 2],
        "quantization_dim": 96,  # of the decoder and the semantic encoder together
        "quantization_levels": LEVELS,
        "initializer_range": 0.08,
        "dtype": "float32",
        "semantic_model_config": semantic,
        **config,
    }
    Codec.from_config(config_class(**fields)).save_pretrained(folder)
    return str(folder)


@dataclass
class Oracle:
    """transformers' language model and codec."""

    lm: Any
    codec: Any

    @classmethod
    def of(cls, lm: str, codec: str) -> Oracle:
        return cls(
            AutoModelForCausalLM.from_pretrained(lm, dtype=torch.float32).eval(),
            Codec.from_pretrained(codec, dtype=torch.float32).eval(),
        )

    def tokens(self, prompt: list[int], max_tokens: int) -> list[int]:
        """`generate`, greedy, kept to codes and the end; the end is the last if it comes."""
        ids = torch.tensor([prompt])
        others = [i for i in range(VOCAB) if i != SPEECH_END and not is_code(i)]
        with torch.no_grad():
            found = self.lm.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                suppress_tokens=others,
                eos_token_id=SPEECH_END,
                pad_token_id=SPEECH_END,
            )
        return found[0, len(prompt) :].tolist()  # type: ignore[no-any-return]

    def sound(self, token_ids: Sequence[int]) -> torch.Tensor:
        """`decode` of the codes among these ids, float32 [n]."""
        codes = [token - FIRST_CODE for token in token_ids if is_code(token)]
        with torch.no_grad():
            decoded = self.codec.decode(audio_codes=torch.tensor([[codes]])).audio_values
        return decoded[0, 0]  # type: ignore[no-any-return]


def is_code(token: int) -> bool:
    return FIRST_CODE <= token < FIRST_CODE + NUM_CODES


def prompts(count: int, *, seed: int = 5) -> list[list[int]]:
    """Prompts of bytes, of mixed lengths from 9 to 70 tokens."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index in range(count):
        length = 9 + (index * 23) % 62
        made.append([BOS, *torch.randint(0, BYTES, (length - 1,), generator=generator).tolist()])
    return made
