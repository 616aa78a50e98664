"""Which ids of a language model's vocabulary are codes, and which end a speech.

The codes are a block of consecutive ids. A checkpoint says where it lies by the names in its
tokenizer (`<|s_0|>`, `<|s_1|>`, … or `<|speech_0|>`, …), or by `first_code_id` and `num_codes` in
its config.json. Neither torch nor transformers is imported here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.errors import ModelUnavailableError
from antiphon.models.json_files import read_object
from antiphon.pipeline.detokenize import load_tokenizer
from antiphon.pipeline.facts import CheckpointFacts

END = "<|SPEECH_GENERATION_END|>"
"""The token that ends a speech; without it the checkpoint's `eos_token_id` does."""

FIRST, COUNT = "first_code_id", "num_codes"  # keys of config.json

_CODE = re.compile(r"<\|(s|speech)_(0|[1-9][0-9]*)\|>")


@dataclass(frozen=True, slots=True)
class SpeechTokens:
    """Code c is the id `first + c`; `ends` are the ids after which nothing follows."""

    first: int
    count: int
    ends: tuple[int, ...]

    def codes(self, token_ids: Sequence[int]) -> list[int]:
        """The codes among these ids, from 0; other ids are left out."""
        found = (token - self.first for token in token_ids)
        return [code for code in found if 0 <= code < self.count]


def read_speech_tokens(folder: str | Path) -> SpeechTokens:
    """What the files of a language model's checkpoint say.

    Raises ModelUnavailableError if they name no block of codes or no token that ends a speech.
    """
    folder = Path(folder)
    config = read_object(folder / "config.json")
    names = _vocabulary(folder)
    given = (config.get(FIRST), config.get(COUNT))
    first, count = _block(names, folder) if given == (None, None) else _given(folder, *given)
    return SpeechTokens(first, count, _ends(names, folder, config))


def checkpoint_facts(folder: Path) -> CheckpointFacts:
    """`Stage.facts` of the language model: what a speech ends with."""
    return CheckpointFacts(sampling={"stop_token_ids": list(read_speech_tokens(folder).ends)})


def longest_input(folder: str | Path) -> int | None:
    """Most tokens of a prompt that leave the model a position to speak; None: it does not say."""
    positions = read_object(Path(folder) / "config.json").get("max_position_embeddings")
    return positions - 1 if type(positions) is int else None


def _given(folder: Path, first: object, count: object) -> tuple[int, int]:
    if type(first) is not int or type(count) is not int or first < 0 or count < 1:
        raise ModelUnavailableError(
            f"{folder / 'config.json'} says {FIRST} {first!r} and {COUNT} {count!r}; give both as"
            " numbers, or neither"
        )
    return first, count


def _block(names: dict[str, int], folder: Path) -> tuple[int, int]:
    """First id and size of the block that the vocabulary's names make up."""
    blocks: defaultdict[str, dict[int, int]] = defaultdict(dict)  # prefix → code → id
    for name, token in names.items():
        if match := _CODE.fullmatch(name):
            blocks[match[1]][int(match[2])] = token
    if len(blocks) != 1:
        found = " and ".join(f"<|{prefix}_N|>" for prefix in blocks) or "none"
        raise ModelUnavailableError(
            f"the tokenizer in {folder} should have one kind of token for codes, <|s_N|> or"
            f" <|speech_N|>, and has {found}; say where they are with {FIRST} and {COUNT} in its"
            " config.json"
        )
    ((prefix, block),) = blocks.items()
    first = min(block.values())
    if any(block.get(code) != first + code for code in range(len(block))):
        raise ModelUnavailableError(
            f"the tokens <|{prefix}_N|> of the tokenizer in {folder} are not numbered like their"
            " ids, one after the other from 0; such a model is not served"
        )
    return first, len(block)


def _ends(names: dict[str, int], folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    if END in names:
        return (names[END],)
    file = folder / "generation_config.json"
    for source in (read_object(file) if file.is_file() else {}, config):
        eos = source.get("eos_token_id")
        ids = eos if isinstance(eos, list) else [eos]
        if ids and all(type(token) is int for token in ids):
            return tuple(ids)
    raise ModelUnavailableError(
        f"nothing in {folder} says what ends a speech: its tokenizer has no {END}, and its"
        " generation_config.json and config.json have no eos_token_id; add one of them"
    )


def _vocabulary(folder: Path) -> dict[str, int]:
    """Ids by name; nothing for a checkpoint without a tokenizer."""
    if not (folder / "tokenizer.json").is_file():
        return {}
    names: dict[str, int] = load_tokenizer(folder).get_vocab(with_added_tokens=True)
    return names
