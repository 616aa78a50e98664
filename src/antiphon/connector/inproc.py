"""The connector between stages of one process: a table shared by all connectors of a run."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from antiphon.connector.base import Buffer, Connector, ConnectorStatistics
from antiphon.errors import ConnectorError


@dataclass(slots=True)
class _Entry:
    owner: InprocConnector  # who put it and answers for it
    data: bytearray


@dataclass(slots=True)
class _Store:
    """One run's payloads, under one lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    entries: dict[str, _Entry] = field(default_factory=dict)
    users: int = 0


_stores: dict[str, _Store] = {}
_stores_lock = threading.Lock()


class InprocConnector(Connector):
    """All connectors of one `run` see the same keys. `max_bytes` bounds what this one holds."""

    def __init__(self, run: str, max_bytes: int) -> None:
        self._run = run
        self._max_bytes = max_bytes
        self._entries = 0
        self._bytes_held = 0
        self._puts = 0
        self._takes = 0
        self._deletes = 0
        self._failures = 0
        self._closed = False
        with _stores_lock:
            self._store = _stores.setdefault(run, _Store())
            self._store.users += 1

    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        data = bytearray().join(parts)  # the one copy: writable, so that tensors may view it
        with self._store.lock:
            self._check_open()
            if key in self._store.entries:
                raise self._failed(f"Key {key!r} is stored already.")
            if self._bytes_held + len(data) > self._max_bytes:
                raise self._failed(
                    f"There is no room for {len(data)} bytes: {self._bytes_held} of "
                    f"{self._max_bytes} are held."
                )
            self._store.entries[key] = _Entry(self, data)
            self._entries += 1
            self._bytes_held += len(data)
            self._puts += 1
        return len(data)

    def take(self, key: str) -> memoryview:
        with self._store.lock:
            self._check_open()
            entry = self._remove(key)
            if entry is None:
                raise self._failed(f"Key {key!r} is not stored: taken, deleted or never put.")
            self._takes += 1
        return memoryview(entry.data)

    def delete(self, keys: Iterable[str]) -> int:
        with self._store.lock:
            found = sum(self._remove(key) is not None for key in keys)
            self._deletes += found
        return found

    def statistics(self) -> ConnectorStatistics:
        with self._store.lock:
            return ConnectorStatistics(
                entries=self._entries,
                bytes_held=self._bytes_held,
                puts=self._puts,
                takes=self._takes,
                deletes=self._deletes,
                failures=self._failures,
            )

    def check_integrity(self) -> None:
        with self._store.lock:
            own = [len(e.data) for e in self._store.entries.values() if e.owner is self]
            if (len(own), sum(own)) != (self._entries, self._bytes_held):
                raise AssertionError("the connector's counters and contents disagree")

    def close(self) -> None:
        with _stores_lock, self._store.lock:
            if self._closed:
                return
            self._closed = True
            entries = self._store.entries
            for key in [key for key, entry in entries.items() if entry.owner is self]:
                self._remove(key)
            self._store.users -= 1
            if self._store.users == 0:
                del _stores[self._run]

    def _remove(self, key: str) -> _Entry | None:
        """Take an entry out of the table and off its owner's books; the lock is held."""
        entry = self._store.entries.pop(key, None)
        if entry is not None:
            entry.owner._entries -= 1
            entry.owner._bytes_held -= len(entry.data)
        return entry

    def _failed(self, message: str) -> ConnectorError:
        self._failures += 1
        return ConnectorError(message)

    def _check_open(self) -> None:
        if self._closed:
            raise self._failed("The connector is closed.")
