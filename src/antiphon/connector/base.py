"""What every connector offers: bytes in under a key, bytes out once.

A connector knows nothing of requests or stages. A key is put once and taken once; the reference
that names it reaches the taker only after the put has returned, so `take` never waits and nothing
polls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import msgspec

Buffer = bytes | bytearray | memoryview


class ConnectorStatistics(msgspec.Struct, frozen=True):
    """Counters since the connector was made, and what it holds now."""

    entries: int  # stored and neither taken nor deleted
    bytes_held: int
    puts: int
    takes: int
    deletes: int
    failures: int
    pooled_bytes: int = 0  # kept for payloads to come: no payload that can be taken is in them


class Connector(ABC):
    """Moves payload bytes between workers. All methods may be called from any thread."""

    @abstractmethod
    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        """Store the concatenation of `parts` under `key` and return its size in bytes.

        Raises ConnectorError if the key exists already or there is no room (nothing is left behind
        then).
        """

    @abstractmethod
    def take(self, key: str) -> memoryview:
        """The bytes stored under `key`, which is gone afterwards.

        The view stays valid as long as it is referenced. Raises ConnectorError if there is no such
        key.
        """

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> int:
        """Forget these keys; unknown ones are ignored. Returns how many existed."""

    @abstractmethod
    def statistics(self) -> ConnectorStatistics: ...

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise AssertionError if counters and contents disagree."""

    def trim(self) -> int:
        """Give back the memory that is kept for payloads to come; what is stored stays.

        Returns how many bytes that were. A connector that keeps none has nothing to do.
        """
        return 0

    @abstractmethod
    def close(self) -> None:
        """Release everything that this object stored and nobody took, and all that it keeps.

        May be called twice.
        """
