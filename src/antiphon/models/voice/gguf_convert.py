"""A Llama-shaped GGUF file with a byte-level BPE tokenizer, rewritten as a Hugging Face folder in
bfloat16.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors import TensorSpec, serialize_file

from antiphon.models.fetch import Progress, silent

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3  # GGUF's token type of special tokens


def convert_gguf(source: Path, folder: Path, progress: Progress = silent) -> None:
    """Write weights, config, tokenizer and chat template of `source` into `folder`."""
    progress("reading the thinker", None)
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    heads, kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    tensors: dict[str, npt.NDArray[np.uint16]] = {}
    for done, tensor in enumerate(reader.tensors):
        progress("converting the thinker", done / len(reader.tensors))
        weight = dequantize(tensor.data, tensor.tensor_type)
        weight = weight.reshape([int(size) for size in reversed(tensor.shape)])
        if tensor.name.endswith("attn_q.weight"):
            weight = unpermute(weight, heads)
        elif tensor.name.endswith("attn_k.weight"):
            weight = unpermute(weight, kv_heads)
        tensors[hf_name(tensor.name)] = to_bfloat16(weight)
    write_bfloat16(tensors, folder / "model.safetensors")
    _write_configs(fields, "lm_head.weight" not in tensors, folder)
    _write_tokenizer(fields, folder)
    progress("converting the thinker", 1.0)


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor."""
    if name in _TOP:
        return _TOP[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{_LAYER[part]}.weight"


def unpermute(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo the row order of GGUF's q and k projections: pairs side by side there, in two halves
    here.
    """
    rows = weight.shape[0]
    paired = weight.reshape(heads, rows // heads // 2, 2, *weight.shape[1:])
    return paired.swapaxes(1, 2).reshape(weight.shape)


def to_bfloat16(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of `array` as bfloat16, rounded to nearest, ties to even; numpy has no such type."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_bfloat16(tensors: Mapping[str, npt.NDArray[np.uint16]], path: Path) -> None:
    """A safetensors file of tensors whose bits are bfloat16."""
    specs = {
        name: TensorSpec(
            dtype="bfloat16",
            shape=list(array.shape),
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, array in tensors.items()
    }
    serialize_file(specs, path, metadata={"format": "pt"})


def _write_configs(fields: Mapping[str, Any], tied: bool, folder: Path) -> None:
    special = {
        f"{kind}_token_id": fields[f"tokenizer.ggml.{name}_token_id"]
        for kind, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        # the file holds a float32: 9.999999747378752e-06 stands for 1e-5
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": fields["llama.rope.freq_base"],
        "vocab_size": fields["llama.vocab_size"],
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        **special,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps(special))


def _write_tokenizer(fields: Mapping[str, Any], folder: Path) -> None:
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": index, "content": token, "special": True, **flags}
            for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind == _CONTROL_TOKEN
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                byte_level | {"add_prefix_space": False},
            ],
        },
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        "chat_template": fields["tokenizer.chat_template"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
