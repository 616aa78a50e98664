"""The checkpoint's tokenizer and the official templates (`Qwen3TTSModel._build_assistant_text`).

Neither torch, vllm nor transformers is imported here.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from antiphon.errors import ModelUnavailableError
from antiphon.pipeline.detokenize import load_tokenizer

# How transformers' Qwen2TokenizerFast splits a text into words.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def spoken_text(text: str) -> str:
    """A text to be spoken."""
    return f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n"


def instruction_text(instruction: str) -> str:
    """A description of the voice, or of the way to speak."""
    return f"<|im_start|>user\n{instruction}<|im_end|>\n"


def text_tokenizer(checkpoint: str | Path) -> Tokenizer:
    """From tokenizer.json, or from vocab.json, merges.txt and tokenizer_config.json, which are what
    the published checkpoints have. Raises ModelUnavailableError if there is neither.
    """
    folder = Path(checkpoint)
    whole = folder / "tokenizer.json"
    try:
        if whole.is_file():
            return load_tokenizer(folder)
        return _assembled(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ModelUnavailableError(
            f"{folder} has no tokenizer: neither tokenizer.json nor vocab.json with merges.txt and"
            f" tokenizer_config.json can be read: {error}"
        ) from error


def _assembled(folder: Path) -> Tokenizer:
    """As transformers converts a Qwen2 tokenizer."""
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [(a, b) for a, _, b in (line.partition(" ") for line in lines) if a and b]
    if lines[0].startswith("#version"):
        merges = merges[1:]
    tokenizer = Tokenizer(BPE(vocab, merges))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated", invert=False)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    added = sorted((int(number), token) for number, token in config["added_tokens_decoder"].items())
    tokenizer.add_tokens([_added(token) for _, token in added])
    for number, token in added:
        if tokenizer.token_to_id(token["content"]) != number:
            raise ValueError(f"the added token {token['content']} is not number {number}")
    return tokenizer


def _added(token: dict[str, object]) -> AddedToken:
    known = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(str(token["content"]), **{key: bool(token.get(key)) for key in known})
