"""Payloads as files: how one is written and taken, and what room the file system has."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from antiphon.connector.parts import write
from antiphon.connector.runs import check_owner
from antiphon.connector.segments import HEAD, SEGMENT_BYTES, payload_length

# A large payload is read as a whole: finding its pages at once costs less than one by one.
_POPULATE = mmap.MAP_POPULATE if sys.platform == "linux" else 0


def write_new(path: Path, views: Sequence[memoryview]) -> None:
    """Create `path` with these bytes; on failure nothing is left. Raises OSError.

    Written, not mapped: when memory runs out a write fails, but touching a mapping is fatal.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        write(fd, views)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def map_and_unlink(path: Path) -> memoryview:
    """The bytes of `path`, which is gone afterwards. Of several takers the one to unlink wins.

    A segment stays locked as long as the view is referenced: the mapping has a descriptor too.
    Raises OSError, also for a link, and for a file of another user.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        check_owner(fd)
        size, start, flags = os.fstat(fd).st_size, 0, mmap.MAP_SHARED
        if size >= SEGMENT_BYTES:
            # Waits only for what `drop_orphans` does, or if the payload has been taken already.
            fcntl.flock(fd, fcntl.LOCK_SH)
            size, start, flags = payload_length(fd), HEAD, flags | _POPULATE
        # An empty file cannot be mapped.
        view = memoryview(mmap.mmap(fd, size, flags, offset=start) if size else bytearray())
    finally:
        os.close(fd)
    path.unlink()
    return view


def payload_size(path: Path) -> int | None:
    """Bytes of the payload in `path`; None if it has been taken this moment, -1 if damaged."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        return size if size < SEGMENT_BYTES else payload_length(fd)
    except OSError:
        return -1
    finally:
        os.close(fd)


def free_bytes(directory: Path) -> int:
    stats = os.statvfs(directory)
    return stats.f_bavail * stats.f_frsize


def is_roomy(directory: Path) -> bool:
    """Whether half of the file system is free; others need it more than a pool does if not."""
    stats = os.statvfs(directory)
    return 2 * stats.f_bavail >= stats.f_blocks
