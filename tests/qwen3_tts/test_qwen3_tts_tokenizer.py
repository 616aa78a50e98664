"""A tokenizer out of the files that published checkpoints have splits as transformers' does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import Qwen2Tokenizer

from antiphon.errors import ModelUnavailableError
from antiphon.models.qwen3_tts.tokenizer import instruction_text, spoken_text, text_tokenizer
from qwen3_tts_stages import CHECKPOINT

TEXTS = [
    "Hello, it's 12:45.\n\n  Next  line\t tab ",
    "\u6211\u53eb\u901a\u4e49\u5343\u95ee\uff0c\u662f\u963f\u91cc\u4e91\u7684\u3002",
    "cafe\u0301 na\u00efve \U0001f600!?\r\n'LL we'Ve",
    spoken_text("user assistant"),
    instruction_text("an assistant <tts_pad> speaks"),
]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The fixtures' tokenizer as vocab.json, merges.txt and tokenizer_config.json."""
    state = json.loads((Path(CHECKPOINT) / "tokenizer.json").read_text())
    added = {str(token["id"]): token for token in state["added_tokens"]}
    special = {token["content"] for token in added.values()}
    vocab = {k: v for k, v in state["model"]["vocab"].items() if k not in special}
    # Added tokens are numbered behind the vocabulary, as in the published files.
    order = {name: i for i, name in enumerate(sorted(vocab, key=lambda name: vocab[name]))}
    added = {str(len(order) + i): token for i, token in enumerate(added.values())}
    merges = "\n".join(" ".join(pair) for pair in state["model"]["merges"])
    (tmp_path / "vocab.json").write_text(json.dumps(order))
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": added, "tokenizer_class": "Qwen2Tokenizer"})
    )
    return tmp_path


def test_splits_as_transformers(published: Path) -> None:
    ours, theirs = text_tokenizer(published), Qwen2Tokenizer.from_pretrained(published)
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == theirs(text)["input_ids"]
        assert len(ids) > 3


def test_a_whole_tokenizer_is_preferred() -> None:
    ids = text_tokenizer(CHECKPOINT).encode(spoken_text("a")).ids
    assert ids == Tokenizer.from_file(f"{CHECKPOINT}/tokenizer.json").encode(spoken_text("a")).ids


def test_added_tokens_must_have_their_numbers(published: Path) -> None:
    file = published / "tokenizer_config.json"
    config = json.loads(file.read_text())
    tokens = config["added_tokens_decoder"]
    config["added_tokens_decoder"] = {str(int(n) + 7): token for n, token in tokens.items()}
    file.write_text(json.dumps(config))
    with pytest.raises(ModelUnavailableError, match="is not number"):
        text_tokenizer(published)


def test_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match=r"vocab\.json"):
        text_tokenizer(tmp_path)
