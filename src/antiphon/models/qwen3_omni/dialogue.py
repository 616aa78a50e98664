"""What the ids of a conversation mean to the talker: which of the thinker's rows it is given.

After transformers' `Qwen3OmniMoeForConditionalGeneration.generate`, whose choices these are: it is
given all that users said, and the beginning of the reply; no system text, and no earlier reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Qwen3OmniMoeConfig

from antiphon.errors import AdapterError

REPLY_ROWS = 4
"""Rows of the reply's turn that the talker's prompt has: its start, its role, a line break, and the
first token of the reply."""


@dataclass(frozen=True, slots=True)
class Markers:
    """The thinker's ids that give a conversation its structure, and the layer that media have."""

    im_start: int
    user: int
    assistant: int
    media: frozenset[int]  # placeholders of sound, pictures and video
    accept_layer: int  # whose output stands for media; transformers' `hidden_states[k]`

    @classmethod
    def read(cls, checkpoint: str | Path) -> Markers:
        """Those of a checkpoint's configuration."""
        config: Any = Qwen3OmniMoeConfig.from_pretrained(checkpoint)
        thinker = config.thinker_config
        media = {thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id}
        return cls(
            im_start=config.im_start_token_id,
            user=config.user_token_id,
            assistant=config.assistant_token_id,
            media=frozenset(media),
            accept_layer=config.talker_config.accept_hidden_layer,
        )


@dataclass(frozen=True, slots=True)
class TalkerView:
    """Positions of a prompt that the talker is given, in order."""

    user: list[int]
    reply: int  # where the turn of the reply begins


def talker_view(prompt: Sequence[int], markers: Markers) -> TalkerView:
    """The talker's part of the thinker's prompt.

    The turn of the reply is the prompt's last one of the assistant, and goes on behind it. What
    belongs to whom is decided by ids alone, also where a user has written a special token. Raises
    AdapterError if the prompt has no turn of the assistant, which a chat template ends it with.
    """
    turn = 0
    user: list[int] = []
    reply = None
    for position, token in enumerate(prompt):
        if token == markers.im_start:
            turn = position
            if prompt[position + 1 : position + 2] == [markers.assistant]:
                reply = position
        if prompt[min(turn + 1, len(prompt) - 1)] == markers.user:
            user.append(position)
    if reply is None:
        raise AdapterError(
            "the prompt has no turn of the assistant, so there is no reply to be spoken; end it as"
            " the model's chat template does"
        )
    return TalkerView(user, reply)
