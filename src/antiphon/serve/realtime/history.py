"""The messages of a conversation, in their order, as both sides know them."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from antiphon.pipeline.audio import AudioClip
from antiphon.serve.errors import ApiError
from antiphon.serve.realtime.server_events import RATE, Content, ItemBody

FIRST = "root"
"""What OpenAI calls the place before the first message."""

Kind = Literal["input_text", "input_audio", "output_text", "output_audio"]


@dataclass(slots=True, eq=False)
class Part:
    """A piece of a message. `text` of a sound is what is said in it."""

    kind: Kind
    text: str = ""
    clip: AudioClip | None = None  # of a caller's sound
    heard: bool = False  # the model reads `text` in place of the clip
    samples: int = 0  # of the answer's sound, at `RATE`, that have been sent

    @property
    def audio_ms(self) -> int:
        """How long the answer's sound is."""
        return self.samples * 1000 // RATE

    @property
    def size(self) -> int:
        """Bytes that are kept of it, nearly."""
        return len(self.text) + (0 if self.clip is None else len(self.clip.samples))

    def truncate(self, end_ms: int) -> None:
        """Keep what has been heard by then: the sound's share of the text, in whole words.

        Nobody knows which word is said when; of a sound that is `end_ms` / `audio_ms` played, as
        much of its text counts as said.
        """
        keep = len(self.text) * end_ms // max(1, self.audio_ms)
        if end_ms < self.audio_ms and keep < len(self.text):
            cut = self.text[:keep]
            self.text = re.sub(r"\S+$", "", cut).rstrip() if self.text[keep].strip() else cut
        self.samples = min(self.samples, end_ms * RATE // 1000)

    def body(self, *, whole: bool) -> Content:
        """As it is sent; `whole`: with the caller's sound."""
        if self.kind in ("input_text", "output_text"):
            return Content(type=self.kind, text=self.text)
        said = self.text if self.kind == "output_audio" else self.text or None
        if not whole or self.clip is None:
            return Content(type=self.kind, transcript=said)
        sound = base64.b64encode(self.clip.samples).decode()
        return Content(type=self.kind, transcript=said, audio=sound)


@dataclass(slots=True, eq=False)
class Item:
    """One message."""

    id: str
    role: Literal["system", "user", "assistant"]
    parts: list[Part] = field(default_factory=list)
    status: Literal["in_progress", "completed", "incomplete"] = "completed"
    forgotten: bool = False  # the model's context has no room for it any more

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def clips(self) -> tuple[AudioClip, ...]:
        """Sounds that the model has to hear, as it is given no text in their place."""
        return tuple(p.clip for p in self.parts if p.clip is not None and not p.heard)

    @property
    def text(self) -> str:
        """What the model reads of it."""
        texts = (p.text for p in self.parts if p.kind != "input_audio" or p.heard)
        return "\n".join(text for text in texts if text.strip())

    def truncate(self, index: int, end_ms: int) -> None:
        """Keep of an answer's sound what has been played; see `Part.truncate`.

        Raises ApiError for what is no such sound, or is shorter.
        """
        if not 0 <= index < len(self.parts) or self.parts[index].kind != "output_audio":
            why, param = "only the sound of an answer, its content 0, can be truncated", "item_id"
        elif end_ms > (length_ms := self.parts[index].audio_ms):
            why = f"audio content of {length_ms} ms is already shorter than {end_ms} ms"
            param = "audio_end_ms"
        else:
            self.parts[index].truncate(end_ms)
            return
        raise ApiError(400, why, code="invalid_parameter", param=param)

    def body(self, *, whole: bool = False) -> ItemBody:
        """As it is sent; see `Part.body`."""
        return ItemBody(
            id=self.id,
            status=self.status,
            role=self.role,
            content=[part.body(whole=whole) for part in self.parts],
        )

    def message(self) -> Mapping[str, str | Sequence[AudioClip]]:
        """As `OmniRequest.messages` has it."""
        return {"role": self.role, "content": self.text} | (
            {"audio": self.clips} if self.clips else {}
        )


class History:
    """The messages of a conversation, no more than `max_items` and about `max_bytes`."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items, self._max_bytes = max_items, max_bytes
        self._items: list[Item] = []

    def __len__(self) -> int:
        return len(self._items)

    def check_integrity(self) -> None:
        """Raise AssertionError if a message is there twice, or more are than may."""
        ids = {item.id for item in self._items}
        if len(ids) != len(self._items) or len(ids) > self._max_items:
            raise AssertionError("a conversation has a message twice, or too many")

    def check_room(self, size: int = 0) -> None:
        """Raise ApiError unless one more message of `size` bytes may come."""
        if len(self._items) >= self._max_items:
            limit = f"{self._max_items} messages"
        elif size and size + sum(item.size for item in self._items) > self._max_bytes:
            limit = f"{self._max_bytes} bytes"
        else:
            return
        raise ApiError(
            400,
            f"the conversation may have {limit}, and would have more; delete items of it, or begin"
            " another",
            code="conversation_full",
        )

    def place(self, after: str | None) -> int:
        """The index behind the item `after`: None is the end, `FIRST` the beginning.

        Raises ApiError for an unknown item.
        """
        if after is None:
            return len(self._items)
        return 0 if after == FIRST else self._items.index(self.get(after, "previous_item_id")) + 1

    def insert(self, index: int, item: Item) -> str | None:
        """Put a message there; the id of the one in front of it."""
        self._items.insert(index, item)
        return None if index == 0 else self._items[index - 1].id

    def before(self, item: Item) -> str | None:
        """The id of the message in front of this one; None too if it has been deleted."""
        index = self._items.index(item) if item in self._items else 0
        return None if index == 0 else self._items[index - 1].id

    def find(self, id: str) -> Item | None:
        return next((item for item in self._items if item.id == id), None)

    def get(self, id: str, param: str = "item_id") -> Item:
        """Raises ApiError for an unknown item."""
        if (found := self.find(id)) is None:
            raise ApiError(
                400,
                f"there is no item {id[:100]!r} in the conversation",
                code="item_not_found",
                param=param,
            )
        return found

    def remove(self, item: Item) -> None:
        self._items.remove(item)

    def context(self) -> list[Item]:
        """What the model is given: messages that are there and have not been forgotten."""
        return [i for i in self._items if i.status != "in_progress" and not i.forgotten]
