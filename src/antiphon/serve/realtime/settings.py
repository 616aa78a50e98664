"""What one conversation over `/v1/realtime` may take."""

from __future__ import annotations

import msgspec

_MIB = 1 << 20


class RealtimeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of each conversation."""

    idle_timeout_s: float = 900.0
    """A caller that says nothing for so long, and gets no answer, is disconnected."""
    max_items: int = 1000
    """Messages of the conversation."""
    max_bytes: int = 32 * _MIB
    """Of the texts and sounds that are kept of it."""
    max_unsent_bytes: int = 16 * _MIB
    """What may wait for a caller that reads slowly: about four minutes of sound."""
