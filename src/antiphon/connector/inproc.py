"""The connector between stages of one process: a table shared by all connectors of a run."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from antiphon.connector.base import Buffer, Connector, ConnectorStatistics
from antiphon.connector.pages import LARGE_BYTES, PagePool, Pages
from antiphon.connector.parts import as_bytes, copy
from antiphon.errors import ConnectorError


@dataclass(slots=True)
class _Entry:
    owner: InprocConnector  # who put it and answers for it
    data: memoryview
    pages: Pages | None  # that it lies in, if it is large


@dataclass(slots=True)
class _Store:
    """One run's payloads, under one lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    entries: dict[str, _Entry] = field(default_factory=dict)
    users: int = 0


_stores: dict[str, _Store] = {}
_stores_lock = threading.Lock()


class InprocConnector(Connector):
    """All connectors of one `run` see the same keys.

    `max_bytes` bounds what this one has stored and nobody has taken, together with what it keeps
    for payloads to come, but for what rounding costs: up to a quarter.
    """

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
        self._pool = PagePool()
        with _stores_lock:
            self._store = _stores.setdefault(run, _Store())
            self._store.users += 1

    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        data, pages = self._copied(parts)
        with self._store.lock:
            try:
                self._check_room(key, data.nbytes)
                self._store.entries[key] = _Entry(self, data, pages)
                self._entries += 1
                self._bytes_held += data.nbytes
                self._puts += 1
                if pages is not None:
                    pages.stored = data.nbytes
            finally:
                self._pool.limit(0 if self._closed else self._max_bytes - self._bytes_held)
        return data.nbytes

    def take(self, key: str) -> memoryview:
        with self._store.lock:
            self._check_open()
            entry = self._remove(key)
            if entry is None:
                raise self._failed(f"Key {key!r} is not stored: taken, deleted or never put.")
            self._takes += 1
        return entry.data

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
                pooled_bytes=self._pool.spare,
            )

    def check_integrity(self) -> None:
        with self._store.lock:
            own = [e.data.nbytes for e in self._store.entries.values() if e.owner is self]
            if (len(own), sum(own)) != (self._entries, self._bytes_held):
                raise AssertionError("the connector's counters and contents disagree")
            self._pool.check_integrity()

    def trim(self) -> int:
        with self._store.lock:
            return self._pool.clear()

    def close(self) -> None:
        with _stores_lock, self._store.lock:
            if self._closed:
                return
            self._closed = True
            entries = self._store.entries
            for key in [key for key, entry in entries.items() if entry.owner is self]:
                self._remove(key)
            self._pool.clear()
            self._store.users -= 1
            if self._store.users == 0:
                del _stores[self._run]

    def _check_room(self, key: str, size: int) -> None:
        """Raise ConnectorError if this cannot be stored; the lock is held."""
        self._check_open()
        if key in self._store.entries:
            raise self._failed(f"Key {key!r} is stored already.")
        if self._bytes_held + size > self._max_bytes:
            raise self._failed(
                f"There is no room for {size} bytes: {self._bytes_held} of {self._max_bytes} are"
                " held."
            )

    def _copied(self, parts: Sequence[Buffer]) -> tuple[memoryview, Pages | None]:
        """The one copy, writable, so that tensors may view it; and what it lies in."""
        views = as_bytes(parts)
        size = sum(view.nbytes for view in views)
        if size < LARGE_BYTES:
            return memoryview(bytearray().join(views)), None
        with self._store.lock:
            pages, payload = self._pool.acquire(size)
        copy(views, payload)
        return payload.data, pages

    def _remove(self, key: str) -> _Entry | None:
        """Take an entry out of the table and off its owner's books; the lock is held."""
        entry = self._store.entries.pop(key, None)
        if entry is not None:
            entry.owner._entries -= 1
            entry.owner._bytes_held -= entry.data.nbytes
            if entry.pages is not None:
                entry.pages.stored = 0
        return entry

    def _failed(self, message: str) -> ConnectorError:
        self._failures += 1
        return ConnectorError(message)

    def _check_open(self) -> None:
        if self._closed:
            raise self._failed("The connector is closed.")
