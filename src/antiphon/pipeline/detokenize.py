"""Token ids to text as they come, with the `tokenizers` library; no transformers, torch or vllm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from antiphon.errors import ModelUnavailableError


class Detokenizer:
    """One request's text. Special tokens leave no text; a character split over tokens waits."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def feed(self, token_ids: Sequence[int]) -> str:
        """Text that is new with these tokens."""
        pieces = (self._stream.step(self._tokenizer, token) for token in token_ids)
        return "".join(piece for piece in pieces if piece)


def load_tokenizer(checkpoint: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder. Raises ModelUnavailableError if it has none."""
    file = Path(checkpoint) / "tokenizer.json"
    if not file.is_file():
        raise ModelUnavailableError(
            f"{checkpoint} has no tokenizer.json; write it there once with transformers'"
            " AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ModelUnavailableError(f"{file} cannot be read: {error}") from error
