"""What happens at the edges of the `voice` pipeline.

`speak` (thinker → talker): the text is cut into sentences while it is written, each a part of its
own; the talker's end turns a sentence into phonemes. `codes` (talker → code2wav): the codec ids,
without the phonemes between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from antiphon.core.frames import FrameWindows, Framing
from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError
from antiphon.models.code_payloads import CODES, codes_payload, window_prompt
from antiphon.models.voice import phonemes
from antiphon.models.voice.text import SentenceStream, has_words, normalise
from antiphon.models.voice.vocabulary import FIRST_CODE, NUM_CODES, SPACE
from antiphon.payload.adapters import Input, OutputNeeds, StageContext, StepRows
from antiphon.payload.types import Field, Payload, Scalar, per_request
from antiphon.pipeline.detokenize import Detokenizer, load_tokenizer

TEXT = "text"


def text_field(text: str) -> Field:
    """A text as a payload's field: its UTF-8 bytes, uint8 [n]."""
    return per_request(torch.tensor(list(text.encode()), dtype=torch.uint8))


def payload_text(payload: Payload, name: str = TEXT) -> str:
    """The text of such a field. Raises AdapterError if it is none."""
    tensor = _field(payload, name, torch.uint8)
    try:
        return bytes(tensor.tolist()).decode()
    except UnicodeDecodeError as error:
        raise AdapterError(f"the field {name!r} does not hold UTF-8") from error


def text_payload(text: str) -> Payload:
    """A payload of one text."""
    return Payload({TEXT: text_field(text)})


class SpeakOutput:
    """Thinker's end of `speak`: one payload for each sentence as soon as it is complete."""

    needs = OutputNeeds(requires_token_updates=True)

    def __init__(self, context: StageContext) -> None:
        self._tokenizer = load_tokenizer(context.model)

    def open(self, uid: str, params: Mapping[str, Scalar]) -> Speaker:
        return Speaker(Detokenizer(self._tokenizer))


class Speaker:
    """One request's text on its way to the talker; parts without a word are dropped."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._sentences = SentenceStream()

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        return _spoken(self._sentences.feed(self._detokenizer.feed(token_ids)))

    def on_rows(self, rows: StepRows) -> list[Payload]:
        return []

    def on_end(self) -> list[Payload]:
        return _spoken(self._sentences.flush())


class SpeakInput:
    """Talker's end of `speak`: the sentence as phonemes."""

    def __init__(self, context: StageContext) -> None:
        phonemes.prompts("ready")  # loads the library's tables now, not with the first sentence

    def open(self, uid: str, params: Mapping[str, Scalar]) -> SpeakInput:
        return self  # a sentence says it all: nothing is kept for a request

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        """The talker's prompt. A text without a sound is a short pause."""
        # normalised again: a payload may come from anywhere, and endless numbers are not read
        ids = phonemes.phoneme_ids(normalise(payload_text(payload)))
        if not phonemes.speakable(ids):
            ids = []
        words = ids.count(SPACE) + 1
        if len(ids) > phonemes.MAX_PHONEMES or words > phonemes.MAX_WORDS:
            raise AdapterError(
                f"a part of {len(ids)} phonemes in {words} words is too long to be spoken at once"
                f" ({phonemes.MAX_PHONEMES} and {phonemes.MAX_WORDS} at most)"
            )
        return Input(PromptPlan(tuple(phonemes.prompt(ids))))

    def on_end(self) -> Input:
        return Input()


class CodesOutput:
    """Talker's end of `codes`: what is spoken, window by window; on a full edge, all at the end."""

    needs = OutputNeeds(requires_token_updates=True)

    def __init__(self, context: StageContext) -> None:
        self._framing = None
        if context.stream:
            self._framing = Framing.from_options(context.options, f"edge {context.edge}")

    def open(self, uid: str, params: Mapping[str, Scalar]) -> CodeWindows:
        return CodeWindows(self._framing)


class CodeWindows:
    """One request's codes: sampled ids from `FIRST_CODE` on, counted from 0."""

    def __init__(self, framing: Framing | None) -> None:
        self._windows: FrameWindows[int] = FrameWindows(framing)

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        codes = [token - FIRST_CODE for token in token_ids if token >= FIRST_CODE]
        return [codes_payload(*made) for made in self._windows.push(codes)]

    def on_rows(self, rows: StepRows) -> list[Payload]:
        return []

    def on_end(self) -> list[Payload]:
        return [codes_payload(*made) for made in self._windows.flush()]


class CodesInput:
    """Code2wav's end of `codes`: a code is an id of its prompt."""

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> CodesInput:
        return self  # a window says it all

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        codes = _field(payload, CODES, torch.int32)
        if not codes.numel():
            raise AdapterError(f"the field {CODES!r} holds no codes")
        if int(codes.min()) < 0 or int(codes.max()) >= NUM_CODES:
            raise AdapterError(f"codes must lie between 0 and {NUM_CODES - 1}")
        return window_prompt(payload, codes.tolist())

    def on_end(self) -> Input:
        return Input()


def _spoken(parts: Sequence[str]) -> list[Payload]:
    return [text_payload(part) for part in parts if has_words(part)]


def _field(payload: Payload, name: str, dtype: torch.dtype) -> torch.Tensor:
    """The named field, a vector of this dtype. Raises AdapterError if it is not."""
    field = payload.fields.get(name)
    if field is None:
        raise AdapterError(f"the payload has no field {name!r}")
    tensor = field.tensor
    if tensor.dtype != dtype or tensor.dim() != 1:
        raise AdapterError(
            f"the field {name!r} must be a vector of {dtype}, not {tensor.dtype}"
            f" {tuple(tensor.shape)}"
        )
    return tensor
