"""The connector between processes of one machine: a file in shared memory per payload.

A key becomes a digest, so that nothing a caller says is ever part of a file name. The file is
written once, mapped by its taker and unlinked at once; its memory is freed with the last view. That
of a large payload is kept, and written again (`connector.segments`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.connector import files
from antiphon.connector.base import Buffer, Connector, ConnectorStatistics
from antiphon.connector.parts import as_bytes
from antiphon.connector.runs import (
    RunLock,
    data_name,
    is_ours,
    key_digest,
    remove_file,
    shm_directory,
)
from antiphon.connector.segments import SEGMENT_BYTES, Segment, SegmentPool, drop_orphans
from antiphon.errors import ConnectorError

_RECONCILE_AT = 256  # entries of the ledger that are not worth a look at the folder


@dataclass(slots=True)
class _Stored:
    size: int  # bytes
    segment: Segment | None  # None: a file of its own


class ShmConnector(Connector):
    """`max_bytes` bounds what this connector has stored and nobody has taken, together with what
    it keeps for payloads to come, which gives way to what is to be stored.

    A taker in another process does not report back: the ledger of what is held is compared with the
    folder when the room runs short, when it has doubled, and when somebody asks.
    """

    def __init__(self, run: str, max_bytes: int, directory: Path | None = None) -> None:
        self._directory = shm_directory() if directory is None else directory
        self._run_lock = RunLock(run, self._directory)
        drop_orphans(run, self._directory)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._ledger: dict[str, _Stored] = {}  # by file name
        self._pool = SegmentPool(run, self._directory)
        self._bytes_held = 0
        self._reserved = 0  # bytes being written
        self._reconcile_at = _RECONCILE_AT
        self._puts = 0
        self._takes = 0
        self._deletes = 0
        self._failures = 0
        self._closed = False

    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        views = as_bytes(parts)
        size = sum(view.nbytes for view in views)
        path = self._path(key)
        segment, reserved = self._reserve(size)
        stored = None
        try:
            if segment is None:
                files.write_new(path, views)
            else:
                segment.fill(views, size)
                segment.publish(path)
            stored = _Stored(size, segment)
        except FileExistsError:
            raise ConnectorError(f"Key {key!r} is stored already.") from None
        except OSError as error:
            raise ConnectorError(f"Writing {size} bytes to shared memory: {error}.") from error
        finally:
            self._settle(path.name, reserved, segment, stored)
        return size

    def take(self, key: str) -> memoryview:
        path = self._path(key)
        self._check_open()
        try:
            view = files.map_and_unlink(path)
        except OSError as error:
            with self._lock:
                self._failures += 1
            if isinstance(error, FileNotFoundError):
                text = f"Key {key!r} is not stored: taken, deleted or never put."
            else:
                text = f"Mapping key {key!r}: {error}."
            raise ConnectorError(text) from error
        with self._lock:
            self._forget(path.name)
            self._takes += 1
        return view

    def delete(self, keys: Iterable[str]) -> int:
        found = 0
        for path in map(self._path, keys):
            found += remove_file(path)
            with self._lock:
                self._forget(path.name)
        with self._lock:
            self._deletes += found
        return found

    def statistics(self) -> ConnectorStatistics:
        with self._lock:
            self._reconcile()
            return ConnectorStatistics(
                entries=len(self._ledger),
                bytes_held=self._bytes_held,
                puts=self._puts,
                takes=self._takes,
                deletes=self._deletes,
                failures=self._failures,
                pooled_bytes=self._pool.spare,
            )

    def check_integrity(self) -> None:
        with self._lock:
            self._reconcile()
            if sum(stored.size for stored in self._ledger.values()) != self._bytes_held:
                raise AssertionError("the connector's counters and contents disagree")
            for name, stored in self._ledger.items():
                if files.payload_size(self._directory / name) not in (stored.size, None):
                    raise AssertionError(f"{name} does not have the size that was written")
            self._pool.check_integrity()

    def trim(self) -> int:
        with self._lock:
            self._reconcile()
            return self._pool.clear()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for name in self._ledger:
                remove_file(self._directory / name)
            self._ledger.clear()
            self._bytes_held = 0
            self._pool.clear()
            self._run_lock.close()

    def _path(self, key: str) -> Path:
        return self._directory / data_name(self._run_lock.run, key_digest(key))

    def _reserve(self, size: int) -> tuple[Segment | None, int]:
        """The segment to write `size` bytes to, if not to a file of their own, and how many bytes
        of room this has claimed. Raises ConnectorError.
        """
        with self._lock:
            self._refuse_if_closed()
            if len(self._ledger) >= self._reconcile_at:
                self._reconcile()
                self._reconcile_at = max(_RECONCILE_AT, 2 * len(self._ledger))
            segment = self._acquire(size) if size >= SEGMENT_BYTES else None
            growth = size if segment is None else max(0, size - segment.capacity)
            try:
                self._check_room(size, growth)
            except ConnectorError:
                self._failures += 1
                if segment is not None:
                    self._pool.settle(segment, keep=True)
                raise
            self._reserved += growth
            return segment, growth

    def _acquire(self, size: int) -> Segment:
        segment = self._pool.acquire(size)
        stored = self._ledger.get(segment.name)
        if stored is not None and stored.segment is segment:  # another process has taken it
            self._forget(segment.name)
        return segment

    def _check_room(self, size: int, growth: int) -> None:
        """Make room for a payload that needs `growth` bytes more. Raises ConnectorError."""
        if self._used + growth > self._max_bytes:
            self._reconcile()
        if self._used + growth > self._max_bytes:
            self._pool.give_back(self._used + growth - self._max_bytes)
        if self._used + growth > self._max_bytes:
            raise ConnectorError(
                f"There is no room for {size} bytes: {self._bytes_held + self._reserved} of "
                f"{self._max_bytes} are held."
            )
        free = files.free_bytes(self._directory)
        if growth > free:
            self._reconcile()
            self._pool.give_back(growth - free)
            free = files.free_bytes(self._directory)
        if growth > free:
            raise ConnectorError(
                f"There is no room for {size} bytes: {self._directory} has {free} left."
            )

    def _settle(
        self, name: str, reserved: int, segment: Segment | None, stored: _Stored | None
    ) -> None:
        """What was reserved for has been written, or that has failed (`stored` is None)."""
        with self._lock:
            self._reserved -= reserved
            if segment is not None:
                keep = not self._closed and files.is_roomy(self._directory)
                self._pool.settle(segment, keep=keep)
            if stored is None:
                self._failures += 1
                return
            if self._closed:
                remove_file(self._directory / name)
                self._failures += 1
                raise ConnectorError("The connector was closed while it stored a payload.")
            self._forget(name)  # the same key, put, taken elsewhere and put again
            self._ledger[name] = stored
            if segment is not None:
                segment.name, segment.stored = name, stored.size
            self._bytes_held += stored.size
            self._puts += 1

    def _forget(self, name: str) -> None:
        stored = self._ledger.pop(name, None)
        if stored is None:
            return
        self._bytes_held -= stored.size
        if stored.segment is not None:
            stored.segment.stored = 0

    def _reconcile(self) -> None:
        """Drop from the ledger what other processes have taken; the lock is held."""
        for name in [name for name in self._ledger if not is_ours(self._directory / name)]:
            self._forget(name)

    @property
    def _used(self) -> int:
        return self._bytes_held + self._reserved + self._pool.spare

    def _check_open(self) -> None:
        with self._lock:
            self._refuse_if_closed()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            self._failures += 1
            raise ConnectorError("The connector is closed.")
