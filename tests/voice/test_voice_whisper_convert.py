"""A Whisper model of CTranslate2 as a Hugging Face folder."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest

from antiphon.errors import ModelUnavailableError
from antiphon.models.voice.whisper_convert import hf_tensors, read_ctranslate2

Arrays = dict[str, np.ndarray]


def write(path: Path, arrays: Arrays, *, version: int = 6, spec: str = "WhisperSpec") -> Path:
    """As CTranslate2's `Model.save` does it."""
    out = io.BytesIO()

    def text(value: str) -> None:
        out.write(struct.pack("<H", len(value) + 1) + value.encode() + b"\0")

    out.write(struct.pack("<I", version))
    text(spec)
    out.write(struct.pack("<II", 3, len(arrays)))
    kinds = [np.dtype(t) for t in (np.float32, np.int8, np.int16, np.int32, np.float16)]
    for name, array in arrays.items():
        text(name)
        out.write(struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape))
        out.write(struct.pack("<BI", kinds.index(array.dtype), array.nbytes) + array.tobytes())
    out.write(struct.pack("<I", 0))  # aliases
    path.write_bytes(out.getvalue())
    return path


def test_every_type_and_shape_is_read(tmp_path: Path) -> None:
    arrays: Arrays = {
        "half": np.arange(6, dtype=np.float16).reshape(2, 3),
        "flag": np.array(1, np.int8),
        "heads": np.array([[1, 0], [2, 5]], np.int32),
    }
    found = read_ctranslate2(write(tmp_path / "model.bin", arrays))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("other", [{"version": 5}, {"spec": "TransformerSpec"}])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, other: dict[str, object]) -> None:
    with pytest.raises(ModelUnavailableError, match="not WhisperSpec"):
        read_ctranslate2(write(tmp_path / "model.bin", {}, **other))  # type: ignore[arg-type]


def model(width: int = 2) -> Arrays:
    """One layer on either side; every number is another one."""
    count = 0

    def array(*shape: int) -> np.ndarray:
        nonlocal count
        size = int(np.prod(shape))
        count += size
        return np.arange(count - size, count, dtype=np.float16).reshape(shape)

    arrays: Arrays = {"decoder/embeddings/weight": array(5, width)}
    for conv in ("conv1", "conv2"):
        arrays |= {f"encoder/{conv}/weight": array(width, 3), f"encoder/{conv}/bias": array(width)}
    for side in ("encoder", "decoder"):
        arrays[f"{side}/position_encodings/encodings"] = array(4, width)
        norms = [f"{side}/layer_norm", *(f"{side}/layer_0/{n}/layer_norm" for n in _blocks(side))]
        for norm in (*norms, f"{side}/layer_0/ffn/layer_norm"):
            arrays |= {f"{norm}/gamma": array(width), f"{norm}/beta": array(width)}
        rows = {"self_attention/linear_0": 3, "self_attention/linear_1": 1}
        rows |= {"ffn/linear_0": 4, "ffn/linear_1": 1}
        if side == "decoder":
            rows |= {"attention/linear_0": 1, "attention/linear_1": 2, "attention/linear_2": 1}
        for name, times in rows.items():
            at = f"{side}/layer_0/{name}"
            arrays |= {
                f"{at}/weight": array(times * width, width),
                f"{at}/bias": array(times * width),
            }
    return arrays


def _blocks(side: str) -> tuple[str, ...]:
    return ("self_attention",) if side == "encoder" else ("self_attention", "attention")


def test_stacked_projections_are_taken_apart() -> None:
    stored = model()
    made = hf_tensors(stored)
    stacked = stored["decoder/layer_0/attention/linear_1/weight"]
    at = "model.decoder.layers.0.encoder_attn"
    np.testing.assert_array_equal(made[f"{at}.k_proj.weight"], stacked[:2])
    np.testing.assert_array_equal(made[f"{at}.v_proj.weight"], stacked[2:])
    assert f"{at}.k_proj.bias" not in made
    assert f"{at}.v_proj.bias" in made


def test_every_number_has_its_place() -> None:
    """But for the biases of keys, which Whisper has not."""
    stored = model()
    given = sorted(number for array in stored.values() for number in array.flat)
    kept = sorted(number for array in hf_tensors(stored).values() for number in array.flat)
    keys = [
        *stored["encoder/layer_0/self_attention/linear_0/bias"][2:4],
        *stored["decoder/layer_0/self_attention/linear_0/bias"][2:4],
        *stored["decoder/layer_0/attention/linear_1/bias"][:2],
    ]
    assert sorted([*kept, *keys]) == given
