"""OpenAI's voices, for pipelines that have speakers of their own or only one."""

from __future__ import annotations

from antiphon.errors import InvalidRequestError
from antiphon.pipeline.topology import Entry

SPEAKER = "speaker"
"""The parameter of an entry that says who speaks."""
DEFAULT = "default"
"""The name of whoever speaks where nobody is named."""
# fmt: off
OPENAI = frozenset({
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage",
    "shimmer", "verse",
})
# fmt: on


def voice_params(entry: Entry, voice: str | None) -> dict[str, str]:
    """The parameters that have an answer spoken in this voice.

    Where the entry takes a speaker, a voice is the name of one. Where there is one voice alone, the
    names of OpenAI's mean it, as its clients have to give one. Raises InvalidRequestError for
    another name.
    """
    if voice is None or voice == DEFAULT:
        return {}
    if SPEAKER in entry.params:
        return {SPEAKER: voice}
    if voice not in OPENAI:
        raise InvalidRequestError(
            f"there is no voice {voice!r}: this pipeline has one voice, {DEFAULT}, which OpenAI's"
            " names stand for as well"
        )
    return {}
