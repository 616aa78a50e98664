"""Frames over a connected pair of sockets: one message and the raw tensors beside it.

Framing is `multiprocessing.connection`'s; messages are msgpack. Nothing is pickled.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

import msgspec

Message = TypeVar("Message")
_COUNT = 4  # bytes of the frame count in front of a message


class Channel(Generic[Message]):
    """One end: encodes anything, decodes `incoming`. Any thread may send, while one receives."""

    def __init__(self, connection: Connection[object, object], incoming: object) -> None:
        self._connection = connection
        self._sending = threading.Lock()  # a message and its frames stay together
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(incoming)

    def send(self, message: object, frames: Sequence[memoryview] = ()) -> None:
        """Blocks while the other end does not read. Raises OSError when it is gone."""
        head = len(frames).to_bytes(_COUNT, "little") + msgspec.msgpack.encode(message)
        with self._sending:
            self._connection.send_bytes(head)
            for frame in frames:
                self._connection.send_bytes(frame)

    def receive(self) -> tuple[Message, list[bytes]]:
        """Blocks until a message is complete.

        Raises EOFError or OSError when the other end is gone, MsgspecError for what is no message.
        """
        head = self._connection.recv_bytes()
        count = int.from_bytes(head[:_COUNT], "little")
        frames = [self._connection.recv_bytes() for _ in range(count)]
        try:
            return self._decoder.decode(head[_COUNT:]), frames
        except RecursionError as error:  # an unknown key that is nested without end
            raise msgspec.DecodeError(str(error)) from error

    def close(self) -> None:
        self._connection.close()
