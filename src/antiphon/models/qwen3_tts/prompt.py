"""The talker's prompt as arithmetic of ids, of the official `qwen-tts` package
(`Qwen3TTSForConditionalGeneration.generate`, version 0.1.1). No tensors here.

A row is the embedding of a text id, projected into the talker's space, with that of a codec id
added to it:

    text     instruction  start role break  pad   pad       pad      pad       pad     bos
    codec    -            -     -    -      think think_bos language think_eos speaker codec_pad

(without a language: nothink think_bos think_eos; without a speaker no row for it). Then the text
is streamed, its first id in the prompt and one more with each frame,

    text     1st token       then, behind the prompt:  2nd token, ..., eos, pad, pad, ...
    codec    codec_bos

or all of it comes before the first frame:

    text     1st token  ...  last token  eos         pad        then:  pad, pad, ...
    codec    codec_pad  ...  codec_pad   codec_pad   codec_bos
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from antiphon.core.options import Scalar
from antiphon.errors import EmptyInputError, InvalidRequestError
from antiphon.models.qwen3_tts.settings import TtsSettings
from antiphon.pipeline.suggest import did_you_mean

NO_CODEC = -1
"""Stands for the codec id of a row that has none."""

ROLE_IDS = 3
"""`<|im_start|>assistant\\n`, with which the entry's prompt begins."""

CLOSING_IDS = 5
"""`<|im_end|>\\n<|im_start|>assistant\\n`, with which it ends."""

AUTO = "auto"
"""The language of a request that names none: the model hears it in the text."""

SPEAKER, LANGUAGE, INSTRUCT = "speaker", "language", "instruct"
NON_STREAMING = "non_streaming_mode"
"""The request's parameters; they have the official names."""


@dataclass(frozen=True, slots=True)
class Voice:
    """How a text is to be spoken. Codec ids; `instruct` are text ids, with their own template."""

    speaker: int | None = None
    language: int | None = None
    instruct: Sequence[int] = ()
    streaming: bool = False


@dataclass(frozen=True, slots=True)
class SpokenPrompt:
    """Rows of (text id, codec id or NO_CODEC), and the text ids that come after them."""

    rows: tuple[tuple[int, int], ...]
    trailing: tuple[int, ...]


def spoken_prompt(settings: TtsSettings, ids: Sequence[int], voice: Voice) -> SpokenPrompt:
    """The prompt that speaks the entry's ids (role, text, closing).

    Raises EmptyInputError without text, InvalidRequestError for an id that is none of the text's.
    """
    text = list(ids[ROLE_IDS:-CLOSING_IDS])
    _check_text(settings, ids, text)
    talker = settings.talker_config
    rows = [(i, NO_CODEC) for i in (*voice.instruct, *ids[:ROLE_IDS])]
    preamble = [*_thought(settings, voice.language), talker.codec_pad_id]
    if voice.speaker is not None:
        preamble.insert(-1, voice.speaker)
    rows += [(settings.tts_pad_token_id, codec) for codec in preamble[:-1]]
    rows.append((settings.tts_bos_token_id, preamble[-1]))
    if voice.streaming:
        rows.append((text[0], talker.codec_bos_id))
        return SpokenPrompt(tuple(rows), (*text[1:], settings.tts_eos_token_id))
    rows += [(i, talker.codec_pad_id) for i in (*text, settings.tts_eos_token_id)]
    rows.append((settings.tts_pad_token_id, talker.codec_bos_id))
    return SpokenPrompt(tuple(rows), ())


def _thought(settings: TtsSettings, language: int | None) -> tuple[int, ...]:
    """What the codec is told about the language."""
    talker = settings.talker_config
    if language is None:
        return (talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id)
    return (
        talker.codec_think_id,
        talker.codec_think_bos_id,
        language,
        talker.codec_think_eos_id,
    )


def _check_text(settings: TtsSettings, ids: Sequence[int], text: Sequence[int]) -> None:
    if not text:
        raise EmptyInputError("There is no text to speak: give one.")
    size = settings.talker_config.text_vocab_size
    if not 0 <= min(ids) <= max(ids) < size:
        raise InvalidRequestError(f"text ids must lie between 0 and {size - 1}")


def speaker_of(settings: TtsSettings, params: Mapping[str, Scalar]) -> str | None:
    """The name of the speaker that the request wants, as the checkpoint spells it: its first one
    if it names none. None for an empty name, and for a checkpoint that designs voices.

    Raises InvalidRequestError for one that is not there.
    """
    known = list(settings.talker_config.spk_id)
    given = _text(params, SPEAKER)
    if settings.tts_model_type == "voice_design":
        if given:
            raise InvalidRequestError(
                f"this checkpoint designs voices and has no {SPEAKER}s; describe the voice in"
                f" {INSTRUCT!r} instead"
            )
        return None
    if given is None:
        return next(iter(known), None)
    return _named(SPEAKER, given, known) if given else None


def language_of(
    settings: TtsSettings, params: Mapping[str, Scalar], speaker: str | None
) -> int | None:
    """The codec id of the language that the request wants, None for the model's own choice.

    A speaker with a dialect speaks it where Chinese or no language is asked for. Raises
    InvalidRequestError for a language that is not there.
    """
    talker = settings.talker_config
    known = [AUTO, *(name for name in talker.codec_language_id if "dialect" not in name)]
    given = _named(LANGUAGE, _text(params, LANGUAGE) or AUTO, known)
    dialect = False if speaker is None else talker.spk_is_dialect.get(speaker, False)
    if isinstance(dialect, str) and given in ("chinese", AUTO):
        return talker.codec_language_id[dialect]
    return talker.codec_language_id.get(given)


def instruction_of(settings: TtsSettings, params: Mapping[str, Scalar]) -> str:
    """What the request says about the way to speak. Raises InvalidRequestError if the checkpoint
    does not understand any.
    """
    given = _text(params, INSTRUCT) or ""
    # The official generate_custom_voice drops it without a word.
    if given and settings.tts_model_type == "custom_voice" and settings.tts_model_size == "0b6":
        raise InvalidRequestError(
            f"this checkpoint (0.6B) takes no {INSTRUCT!r}; leave it out, or use a larger one"
        )
    return given


def streaming_of(params: Mapping[str, Scalar]) -> bool:
    """Whether the text is streamed into the talker; InvalidRequestError if that is no boolean."""
    given = params.get(NON_STREAMING, True)
    if type(given) is not bool:
        raise InvalidRequestError(f"{NON_STREAMING} is {given!r}; it has to be true or false")
    return not given


def _text(params: Mapping[str, Scalar], key: str) -> str | None:
    given = params.get(key)
    if given is not None and not isinstance(given, str):
        raise InvalidRequestError(f"{key} is {given!r}; it has to be a text")
    return given


def _named(what: str, given: str, known: Sequence[str]) -> str:
    """The one of `known` that is called so, in upper or lower case."""
    names = {name.lower(): name for name in known}
    if given.lower() not in names:
        raise InvalidRequestError(f"no {what} is called {given!r}{did_you_mean(given, names)}")
    return names[given.lower()]
