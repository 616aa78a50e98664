"""Server-sent events, and what a chat completion that is streamed says in them.

The parser knows as much of the format (WHATWG HTML, 9.2 "Server-sent events") as servers of this
API use: comments, several data lines, LF and CRLF; not a lone CR as the end of a line. The structs
hold what is measured and skip everything else, so that they fit any server that speaks OpenAI's
protocol.
"""

from __future__ import annotations

import msgspec

DONE = b"[DONE]"
"""The data of the last event."""


class EventParser:
    """Bytes as they come from the network in, the data of whole events out."""

    def __init__(self) -> None:
        self._rest = b""  # of a line that has not ended
        self._data: list[bytes] = []  # lines of the event that has not ended

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that end in `received`, in order."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        events = []
        for ended in lines:
            line = ended.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events


class AudioDelta(msgspec.Struct, frozen=True):
    """`data`: base64 of 16-bit little-endian samples."""

    data: str | None = None
    transcript: str | None = None


class Delta(msgspec.Struct, frozen=True):
    """What is new of the message; vLLM has a thinking model's thoughts in `reasoning`."""

    content: str | None = None
    reasoning: str | None = None
    audio: AudioDelta | None = None


class Choice(msgspec.Struct, frozen=True):
    delta: Delta = Delta()


class TokenDetails(msgspec.Struct, frozen=True):
    text_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """`completion_tokens` counts tokens of sound too, where there are any."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    completion_tokens_details: TokenDetails | None = None

    @property
    def text_tokens(self) -> int:
        """Tokens of the text that was made."""
        details = self.completion_tokens_details
        if details is None or details.text_tokens is None:
            return self.completion_tokens
        return details.text_tokens


class Failure(msgspec.Struct, frozen=True):
    """OpenAI's codes are words, vLLM's are numbers."""

    message: str = ""
    code: str | int | None = None
    type: str | None = None


class ChatChunk(msgspec.Struct, frozen=True):
    """The data of one event."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    error: Failure | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """An answer that is an error."""

    error: Failure


chat_chunks = msgspec.json.Decoder(ChatChunk)
error_bodies = msgspec.json.Decoder(ErrorBody)
