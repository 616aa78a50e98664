"""How the server is run; the command line's options, and nothing of the pipeline."""

from __future__ import annotations

import msgspec

from antiphon.serve.realtime.settings import RealtimeSettings

MIB = 1 << 20


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits are for all callers together unless they say otherwise."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one."""
    api_key: str | None = None
    """What callers have to give as `Authorization: Bearer KEY`; None asks for nothing."""
    served_model_name: str | None = None
    """What callers name as the model; None is the pipeline's name."""
    admin: bool = False
    """Whether sleep, wake and abort may be asked for."""
    allow_origins: tuple[str, ...] = ()
    """Origins of web pages, besides the server's own, that may call; "*" is any."""
    max_queued: int = 64
    """Requests that may wait at each stage beyond those that it serves at a time."""
    max_connections: int = 512
    """Calls that may be open at a time, WebSockets included."""
    max_body_bytes: int = 32 * MIB
    max_message_bytes: int = 4 * MIB
    """Of one WebSocket message."""
    max_audio_s: float = 600.0
    """Longest sound of one call, in seconds."""
    max_text_chars: int = 65_536
    """Longest text to be spoken in one call."""
    body_timeout_s: float = 30.0
    """A body has to have arrived by then."""
    write_timeout_s: float = 30.0
    """A caller that takes nothing for so long is given up."""
    drain_timeout_s: float = 30.0
    """How long calls may go on after SIGTERM."""
    default_deadline_s: float | None = None
    """Of calls that give none themselves; None is no deadline."""
    realtime: RealtimeSettings = RealtimeSettings()
    max_sockets: int | None = None
    """Connections that may be open at a time, with calls or without; None is twice as many as
    calls, and 64."""

    @property
    def most_sockets(self) -> int:
        """`max_sockets`, or what calls need and then some: clients keep connections open."""
        return self.max_sockets or 2 * self.max_connections + 64
