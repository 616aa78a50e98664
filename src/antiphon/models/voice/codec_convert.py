"""Our codec and the last decoder blocks of hibari's network in one checkpoint for the code2wav
stage.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

from antiphon.models.voice.register import CODE2WAV_ARCH

Array = npt.NDArray[np.float32]

FIRST_TAIL_BLOCK = 4  # the codec gives the features behind hibari's decoder block 3
_TAIL_BLOCKS = 4

_CODEC_NAMES = {
    "vq.cb": "codebook.weight",
    "mu": "mean",
    "sd": "std",
    "di.": "expand.",
    "d.": "blocks.",
    "dn.": "norm.",
    "do.": "to_features.",
    "df.": "to_pitch.",
}


def convert_codec(codec: Path, hibari: Path, folder: Path) -> None:
    """Write `model.safetensors` (float32) and `config.json` into `folder`."""
    tensors = codec_tensors(load_file(codec))
    tail, eps = tail_tensors(onnx.load(str(hibari)))
    tensors |= tail
    save_file(
        {f"decoder.{name}": array for name, array in tensors.items()}, folder / "model.safetensors"
    )
    config = {
        "architectures": [CODE2WAV_ARCH],
        "model_type": "antiphon_voice_code2wav",
        "vocab_size": tensors["codebook.weight"].shape[0],
        "code_dim": tensors["codebook.weight"].shape[1],
        "hidden_size": tensors["mean"].shape[0],
        "num_hidden_layers": sum(
            name.startswith("blocks.") and name.endswith("gamma") for name in tensors
        ),
        "decoder_inner": tensors["blocks.0.pw1.weight"].shape[0],
        "tail_layers": _TAIL_BLOCKS,
        "tail_inner": tensors["tail.0.pw1.weight"].shape[0],
        "spectrum_size": tensors["head.weight"].shape[0],
        "tail_norm_eps": eps,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def codec_tensors(stored: dict[str, npt.NDArray[np.generic]]) -> dict[str, Array]:
    """The codec's tensors under the module's names, in float32."""
    renamed: dict[str, Array] = {}
    for name, array in stored.items():
        prefix = next(p for p in _CODEC_NAMES if name == p or (p[-1] == "." and name.startswith(p)))
        renamed[_CODEC_NAMES[prefix] + name.removeprefix(prefix)] = array.astype(np.float32)
    return renamed


def tail_tensors(model: onnx.ModelProto) -> tuple[dict[str, Array], float]:
    """Decoder blocks from `FIRST_TAIL_BLOCK` on, norm and head, with the epsilon of the norms."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    eps = next(
        attribute.f
        for node in model.graph.node
        if node.op_type == "LayerNormalization"
        for attribute in node.attribute
        if attribute.name == "epsilon"
    )

    def plain(name: str) -> Array:
        return stored[name].astype(np.float32)

    def matrix(name: str) -> Array:
        quantized = f"/{name}/Transpose_output_0"
        return np.ascontiguousarray(dequantize(stored, quantized).T)

    tail = {
        "tail_norm.weight": plain("m.dec_norm.weight"),
        "tail_norm.bias": plain("m.dec_norm.bias"),
        "head.weight": matrix("head"),
        "head.bias": plain("m.head.bias"),
    }
    for index in range(_TAIL_BLOCKS):
        block = FIRST_TAIL_BLOCK + index
        for part in (
            "gamma",
            "dw.weight",
            "dw.bias",
            "norm.weight",
            "norm.bias",
            "pw1.bias",
            "pw2.bias",
        ):
            tail[f"tail.{index}.{part}"] = plain(f"m.dec.{block}.{part}")
        for part in ("pw1", "pw2"):
            tail[f"tail.{index}.{part}.weight"] = matrix(f"dec.{block}/{part}")
    return tail, float(eps)


def dequantize(stored: dict[str, npt.NDArray[np.generic]], name: str) -> Array:
    """An 8-bit matrix of the network as float32: (value - zero point) * scale."""
    value, scale, zero = (
        stored[f"{name}_{part}"].astype(np.float32) for part in ("quantized", "scale", "zero_point")
    )
    return (value - zero) * scale
