"""The connector between processes of one machine: a file in shared memory per payload.

A key becomes a digest, so that nothing a caller says is ever part of a file name. The file is
written once, mapped by its taker and unlinked at once; its memory is freed with the last view.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from antiphon.connector.base import Buffer, Connector, ConnectorStatistics
from antiphon.connector.runs import RunLock, data_name, shm_directory
from antiphon.errors import ConnectorError

_RECONCILE_AT = 256  # entries of the ledger that are not worth a look at the folder


class ShmConnector(Connector):
    """`max_bytes` bounds what this connector has stored and nobody has taken.

    A taker in another process does not report back: the ledger of what is held is compared with the
    folder when the room runs short, when it has doubled, and when somebody asks.
    """

    def __init__(self, run: str, max_bytes: int, directory: Path | None = None) -> None:
        self._directory = shm_directory() if directory is None else directory
        self._run_lock = RunLock(run, self._directory)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._ledger: dict[str, int] = {}  # file name -> bytes
        self._bytes_held = 0
        self._reserved = 0  # bytes being written
        self._reconcile_at = _RECONCILE_AT
        self._puts = 0
        self._takes = 0
        self._deletes = 0
        self._failures = 0
        self._closed = False

    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        views = [memoryview(part).cast("B") for part in parts]
        size = sum(view.nbytes for view in views)
        self._reserve(size)
        path = self._path(key)
        try:
            _write_new(path, views)
        except FileExistsError:
            self._settle(size, None)
            raise ConnectorError(f"Key {key!r} is stored already.") from None
        except OSError as error:
            self._settle(size, None)
            raise ConnectorError(f"Writing {size} bytes to shared memory: {error}.") from error
        self._settle(size, path.name)
        return size

    def take(self, key: str) -> memoryview:
        path = self._path(key)
        self._check_open()
        try:
            view = _map_and_unlink(path)
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
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                found += 1
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
            )

    def check_integrity(self) -> None:
        with self._lock:
            self._reconcile()
            if sum(self._ledger.values()) != self._bytes_held:
                raise AssertionError("the connector's counters and contents disagree")
            for name, size in self._ledger.items():
                with contextlib.suppress(FileNotFoundError):  # taken this moment
                    if (self._directory / name).stat().st_size != size:
                        raise AssertionError(f"{name} does not have the size that was written")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for name in self._ledger:
                (self._directory / name).unlink(missing_ok=True)
            self._ledger.clear()
            self._bytes_held = 0
            self._run_lock.close()

    def _path(self, key: str) -> Path:
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return self._directory / data_name(self._run_lock.run, digest)

    def _reserve(self, size: int) -> None:
        """Claim room for `size` bytes. Raises ConnectorError."""
        self._check_open()
        with self._lock:
            if len(self._ledger) >= self._reconcile_at:
                self._reconcile()
                self._reconcile_at = max(_RECONCILE_AT, 2 * len(self._ledger))
            if self._used + size > self._max_bytes:
                self._reconcile()
            if self._used + size > self._max_bytes:
                self._failures += 1
                raise ConnectorError(
                    f"There is no room for {size} bytes: {self._used} of {self._max_bytes} are "
                    f"held."
                )
            free = _free_bytes(self._directory)
            if size > free:
                self._failures += 1
                raise ConnectorError(
                    f"There is no room for {size} bytes: {self._directory} has {free} left."
                )
            self._reserved += size

    def _settle(self, size: int, name: str | None) -> None:
        """A write that was reserved for has succeeded, or failed (`name` is None)."""
        with self._lock:
            self._reserved -= size
            if name is None:
                self._failures += 1
                return
            if self._closed:
                (self._directory / name).unlink(missing_ok=True)
                self._failures += 1
                raise ConnectorError("The connector was closed while it stored a payload.")
            self._forget(name)  # the same key, put, taken elsewhere and put again
            self._ledger[name] = size
            self._bytes_held += size
            self._puts += 1

    def _forget(self, name: str) -> None:
        self._bytes_held -= self._ledger.pop(name, 0)

    def _reconcile(self) -> None:
        """Drop from the ledger what other processes have taken; the lock is held."""
        for name in [name for name in self._ledger if not (self._directory / name).exists()]:
            self._forget(name)

    @property
    def _used(self) -> int:
        return self._bytes_held + self._reserved

    def _check_open(self) -> None:
        with self._lock:
            if self._closed:
                self._failures += 1
                raise ConnectorError("The connector is closed.")


def _write_new(path: Path, views: Sequence[memoryview]) -> None:
    """Create `path` with these bytes; on failure nothing is left. Raises OSError.

    Written, not mapped: when memory runs out a write fails, but touching a mapping is fatal.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        for view in views:
            rest = view
            while rest.nbytes:
                rest = rest[os.write(fd, rest) :]
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _map_and_unlink(path: Path) -> memoryview:
    """The bytes of `path`, which is gone afterwards. Of several takers the one to unlink wins."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(fd).st_size
        # An empty file cannot be mapped.
        view = memoryview(mmap.mmap(fd, size) if size else bytearray())
    finally:
        os.close(fd)
    path.unlink()
    return view


def _free_bytes(directory: Path) -> int:
    stats = os.statvfs(directory)
    return stats.f_bavail * stats.f_frsize
