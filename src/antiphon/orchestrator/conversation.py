"""The messages of a request: what they may hold, and what is said about one that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.errors import InvalidRequestError
from antiphon.pipeline.audio import AudioClip
from antiphon.pipeline.entry import Message
from antiphon.pipeline.topology import Entry

Messages = Sequence[Mapping[str, str | Sequence[AudioClip]]]

ROLES = ("system", "user", "assistant")


def check_messages(messages: object, entry: Entry) -> None:
    """Raise InvalidRequestError for what is not `Messages`, naming the message.

    Whether the entry takes the clips is not looked at here.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidRequestError(
            f"messages is of type {type(messages).__name__}; give a list of dicts with role and"
            " content"
        )
    for index, message in enumerate(messages):
        if (problem := _problem(message)) is not None:
            clips = ", clips as a user's audio" if "audio" in entry.inputs else ""
            raise InvalidRequestError(
                f"message {index} {problem}; entry {entry.name} takes {' and '.join(entry.inputs)}:"
                f" give role ({', '.join(ROLES)}), the text as content{clips}"
            )


def _problem(message: object) -> str | None:
    if not isinstance(message, Mapping):
        return f"is of type {type(message).__name__}, not a dict"
    for key in message:
        if key not in Message.__struct_fields__:
            return f"has {key!r}, which is unknown"
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        return f"has role {role!r}"
    if not isinstance(content, str):
        return f"has content of type {type(content).__name__}" if content else "has no content"
    return _audio_problem(role, message["audio"]) if "audio" in message else None


def _audio_problem(role: str, clips: object) -> str | None:
    if role != "user":
        return f"has audio, but is the {role}'s"
    if not isinstance(clips, list | tuple):
        return f"has audio of type {type(clips).__name__}, not a list of AudioClip"
    if not all(isinstance(clip, AudioClip) for clip in clips):
        return "has audio that is no AudioClip"
    return None
