"""A caller's message as an item of the conversation."""

from __future__ import annotations

from antiphon.serve.errors import ApiError
from antiphon.serve.realtime.client_events import ContentGiven, MessageGiven
from antiphon.serve.realtime.history import Item, Part
from antiphon.serve.realtime.options import Abilities
from antiphon.serve.realtime.sound import clip_of, from_base64
from antiphon.serve.service import new_id

_KINDS = {
    "system": ("input_text",),
    "user": ("input_text", "input_audio"),
    "assistant": ("output_text",),
}


def item_of(given: MessageGiven, abilities: Abilities, place: str) -> Item:
    """Raises ApiError, which names the part that cannot be."""
    item = Item(given.id or new_id("item"), given.role)
    for index, content in enumerate(given.content):
        where = f"{place}.content[{index}]"
        if content.type not in _KINDS[given.role]:
            kinds = " or ".join(_KINDS[given.role])
            raise _wrong(where, f"a message of the {given.role} has {kinds}")
        item.parts.append(_part(content, abilities, where))
    return item


def check_hears(abilities: Abilities, place: str) -> None:
    """Raise ApiError if the pipeline takes no sound."""
    if not (abilities.hears or abilities.transcribes):
        raise ApiError(
            400,
            f"{abilities.model!r} does not hear; give text",
            code="unsupported_value",
            param=place,
        )


def _part(content: ContentGiven, abilities: Abilities, where: str) -> Part:
    if content.type == "input_audio":
        if content.audio is None or content.text is not None:
            raise _wrong(where, "give the sound as audio, in base64")
        check_hears(abilities, where)
        clip = clip_of(from_base64(content.audio, f"{where}.audio"), f"{where}.audio")
        return Part("input_audio", content.transcript or "", clip)
    if content.text is None or content.audio is not None or content.transcript is not None:
        raise _wrong(where, "give its text as text, and nothing else")
    return Part(content.type, content.text)


def _wrong(where: str, why: str) -> ApiError:
    return ApiError(400, f"{where}: {why}", code="invalid_parameter", param=where)
