"""A Whisper model of CTranslate2, rewritten as a Hugging Face folder; every number stays as it is.

The file (`binary_version` 6 of CTranslate2's `ModelWriter`, python/ctranslate2/specs/model_spec.py)
is little-endian: version, name and revision of the specification, then the variables, each with its
name, shape, type and bytes. Projections of one input lie in one matrix, one below the other.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from antiphon.errors import ModelUnavailableError

Tensors = dict[str, npt.NDArray[np.generic]]

_VERSION = 6
_SPEC = "WhisperSpec"
_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)  # by CTranslate2's number
_POSITIONS = 1500  # of the encoder: 30 s
_LENGTH = 448  # of the decoder
_HEAD_SIZE = 64  # of every Whisper
_EOS, _START, _NO_TIMESTAMPS = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"


def convert_whisper(source: Path, folder: Path) -> None:
    """Write weights, configurations and tokenizer of the model in `source` into `folder`.

    Raises ModelUnavailableError for a file of another kind.
    """
    stored = read_ctranslate2(source / "model.bin")
    tensors = hf_tensors(stored)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = json.loads((source / "tokenizer.json").read_text("utf-8"))
    suppressed = json.loads((source / "config.json").read_text("utf-8"))
    for name, content in _configs(tensors, tokenizer, suppressed).items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    merges = (m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"])
    (folder / "merges.txt").write_text("\n".join(("#version: 0.2", *merges)), "utf-8")


def read_ctranslate2(path: Path) -> Tensors:
    """The variables of a model file, by name; they share the file's bytes."""
    data = path.read_bytes()
    at = 0

    def number(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(form)
        return int(value)

    def text() -> str:
        nonlocal at
        length = number("H")  # with the closing zero
        at += length
        return data[at - length : at - 1].decode()

    version, spec, _ = number("I"), text(), number("I")
    if (version, spec) != (_VERSION, _SPEC):
        raise ModelUnavailableError(f"{path} holds {spec} in version {version}, not {_SPEC}")
    tensors: Tensors = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        dtype = np.dtype(_TYPES[number("B")])
        nbytes = number("I")
        array = np.frombuffer(data, dtype, nbytes // dtype.itemsize, at)
        tensors[name] = array.reshape(shape)
        at += nbytes
    return tensors


def hf_tensors(stored: Mapping[str, npt.NDArray[np.generic]]) -> Tensors:
    """The tensors under transformers' names, which ties the output projection to the embeddings."""
    made: Tensors = {}

    def norm(source: str, target: str) -> None:
        made[f"{target}.weight"] = stored[f"{source}/gamma"]
        made[f"{target}.bias"] = stored[f"{source}/beta"]

    def linear(source: str, target: str) -> None:
        made[f"{target}.weight"] = stored[f"{source}/weight"]
        made[f"{target}.bias"] = stored[f"{source}/bias"]

    def projections(source: str, target: str, names: Sequence[str]) -> None:
        weights = np.split(stored[f"{source}/weight"], len(names))
        biases = np.split(stored[f"{source}/bias"], len(names))
        for name, weight, bias in zip(names, weights, biases, strict=True):
            made[f"{target}.{name}_proj.weight"] = weight
            if name != "k":  # Whisper's keys have none, stored as zeros
                made[f"{target}.{name}_proj.bias"] = bias

    for conv in ("conv1", "conv2"):
        linear(f"encoder/{conv}", f"model.encoder.{conv}")
    made["model.decoder.embed_tokens.weight"] = stored["decoder/embeddings/weight"]
    for side in ("encoder", "decoder"):
        positions = stored[f"{side}/position_encodings/encodings"]
        made[f"model.{side}.embed_positions.weight"] = positions
        norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        for layer in range(_layers(stored, side)):
            old, new = f"{side}/layer_{layer}", f"model.{side}.layers.{layer}"
            projections(f"{old}/self_attention/linear_0", f"{new}.self_attn", "qkv")
            linear(f"{old}/self_attention/linear_1", f"{new}.self_attn.out_proj")
            norm(f"{old}/self_attention/layer_norm", f"{new}.self_attn_layer_norm")
            for part, name in enumerate(("fc1", "fc2")):
                linear(f"{old}/ffn/linear_{part}", f"{new}.{name}")
            norm(f"{old}/ffn/layer_norm", f"{new}.final_layer_norm")
            if side == "decoder":
                projections(f"{old}/attention/linear_0", f"{new}.encoder_attn", "q")
                projections(f"{old}/attention/linear_1", f"{new}.encoder_attn", "kv")
                linear(f"{old}/attention/linear_2", f"{new}.encoder_attn.out_proj")
                norm(f"{old}/attention/layer_norm", f"{new}.encoder_attn_layer_norm")
    return {name: np.ascontiguousarray(array) for name, array in made.items()}


def _layers(stored: Mapping[str, object], side: str) -> int:
    return sum(name.endswith("/ffn/linear_0/weight") for name in stored if name.startswith(side))


def _configs(
    tensors: Tensors, tokenizer: Mapping[str, Any], ctranslate2: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON files that transformers and vLLM read, by name."""
    width, bins = tensors["model.encoder.conv1.weight"].shape[:2]
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), ids[_EOS])
    special = {"decoder_start_token_id": ids[_START], **ends}
    config: dict[str, Any] = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": tensors["model.decoder.embed_tokens.weight"].shape[0],
        "num_mel_bins": bins,
        "d_model": width,
        "max_source_positions": _POSITIONS,
        "max_target_positions": _LENGTH,
        "activation_function": "gelu",
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
        "torch_dtype": str(tensors["model.encoder.conv1.weight"].dtype),
        **special,
    }
    for side in ("encoder", "decoder"):
        fc1 = f"model.{side}.layers.0.fc1.weight"
        config[f"{side}_layers"] = sum(
            name.startswith(f"model.{side}.") and name.endswith("fc1.weight") for name in tensors
        )
        config[f"{side}_attention_heads"] = width // _HEAD_SIZE
        config[f"{side}_ffn_dim"] = tensors[fc1].shape[0]
    return {
        "config.json": config,
        "generation_config.json": {
            **special,
            "max_length": _LENGTH,
            "is_multilingual": False,
            "no_timestamps_token_id": ids[_NO_TIMESTAMPS],
            "suppress_tokens": ctranslate2["suppress_ids"],
            "begin_suppress_tokens": ctranslate2["suppress_ids_begin"],
        },
        "preprocessor_config.json": {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "processor_class": "WhisperProcessor",
            "feature_size": bins,
            "sampling_rate": 16_000,
            "hop_length": 160,
            "chunk_length": 30,
            "n_fft": 400,
            "padding_value": 0.0,
            "return_attention_mask": False,
        },
        "tokenizer.json": tokenizer,
        "vocab.json": tokenizer["model"]["vocab"],
        "tokenizer_config.json": {
            "tokenizer_class": "WhisperTokenizerFast",
            "processor_class": "WhisperProcessor",
            **dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), _EOS),
            "add_prefix_space": False,
            "model_max_length": 1024,
        },
    }
