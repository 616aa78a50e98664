"""The caller's sound on its way in: base64 of 16-bit samples, and the buffer they are put into."""

from __future__ import annotations

import base64
import binascii

from antiphon.errors import AntiphonError
from antiphon.pipeline.audio import MIN_SECONDS, AudioClip
from antiphon.serve.errors import ApiError
from antiphon.serve.realtime.server_events import RATE

BYTES_PER_S = 2 * RATE


def from_base64(text: str, param: str) -> bytes:
    """Raises ApiError for what is none."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError(
            400, f"{param} is not base64: {error}", code="invalid_audio", param=param
        ) from None


def clip_of(data: bytes, param: str, code: str = "invalid_audio") -> AudioClip:
    """Raises ApiError for what is too short, too long or ends amid a sample."""
    try:
        return AudioClip(data, RATE)
    except AntiphonError as error:
        raise ApiError(400, str(error), code=code, param=param) from None


class InputBuffer:
    """What has been appended and not been committed."""

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._data = bytearray()

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self._data)

    def append(self, data: bytes) -> None:
        """Raises ApiError if there is too much; nothing of `data` is taken then."""
        if len(self._data) + len(data) > self._max_s * BYTES_PER_S:
            raise ApiError(
                400,
                f"the input buffer would hold more than {self._max_s:g} s of sound; commit or clear"
                " it before more is appended",
                code="input_audio_buffer_full",
                param="audio",
            )
        self._data += data

    def commit(self) -> AudioClip:
        """The whole sound; the buffer is empty then. Raises ApiError, and keeps it."""
        short = len(self._data) < MIN_SECONDS * BYTES_PER_S
        code = "input_audio_buffer_commit_empty" if short else "invalid_audio"
        clip = clip_of(bytes(self._data), "input_audio_buffer", code)
        self._data.clear()
        return clip

    def clear(self) -> None:
        self._data.clear()
