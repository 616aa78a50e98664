"""Shared memory that is written again: the segments that a producer keeps.

It takes the kernel longer to find and clear a page than to copy bytes into it. So large payloads
lie in files whose pages stay. Such a file has a name of its own, and that of the payload besides
while it stores one. Its first page says how long the payload is, which may be shorter than the
room for it.

Locks tell who uses a segment, and the kernel releases them however a process ends. A taker's shared
lock lives as long as its mapping. The producer has a shared lock as long as it keeps the segment,
and writes with an exclusive one: no view that anybody holds ever changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from antiphon.connector import parts
from antiphon.connector.runs import is_current, kept_name, kept_pattern

SEGMENT_BYTES = 1 << 20  # payloads from here on get a segment
MAX_KEPT = 32  # segments of one producer; each has two descriptors
HEAD = mmap.ALLOCATIONGRANULARITY  # bytes before the payload, which is mapped alone

_HEAD = struct.Struct("<8sQ")  # magic, length of the payload in bytes
_MAGIC = b"ANTPSEG1"


def payload_length(fd: int) -> int:
    """Bytes of the payload in a segment. Raises OSError if that is not what the file is."""
    head = os.pread(fd, _HEAD.size, 0)
    if len(head) == _HEAD.size:
        magic, length = _HEAD.unpack(head)
        if magic == _MAGIC and length <= os.fstat(fd).st_size - HEAD:
            return int(length)
    raise OSError("the file is damaged")


class Segment:
    """One file, for one writer at a time. Its owner's lock guards everything but `fill`."""

    def __init__(self, run: str, directory: Path) -> None:
        self.capacity = 0  # bytes for payloads whose pages are there
        self.stored = 0  # of these, what nobody has taken as far as its owner knows
        self.writing = True
        self.name = ""  # of the payload in it, in its owner's books
        self._run = run
        self._directory = directory
        self._path: Path | None = None
        self._fd = -1
        self._length = 0  # of the payload that was written last
        self._pages: npt.NDArray[np.uint8] | None = None  # [capacity] or fewer; mapped

    def fill(self, views: Sequence[memoryview], size: int) -> None:
        """Write these `size` bytes; the segment is the caller's. Raises OSError.

        Only pages that are there are written through the mapping: when memory runs out a write
        fails, but touching a mapping is fatal.
        """
        if self._path is None:
            self._create()
        warm = min(size, self.capacity)
        rest = list(views)
        if warm:
            if self._pages is None or self._pages.nbytes < warm:
                self._pages = self._map()
            rest = parts.copy(views, self._pages[:warm])
        if size > warm:
            os.lseek(self._fd, HEAD + warm, os.SEEK_SET)
            try:
                parts.write(self._fd, rest)
            except OSError:
                os.ftruncate(self._fd, HEAD + self.capacity)
                raise
        os.pwrite(self._fd, _HEAD.pack(_MAGIC, size), 0)
        self._length = size

    def publish(self, path: Path) -> None:
        """Let takers have what has been filled in. Raises OSError; FileExistsError if `path` is
        there.
        """
        assert self._path is not None  # noqa: S101  filled
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        os.link(self._path, path)

    def written(self) -> None:
        """The owner learns that `fill` is over, well or not."""
        self.writing = False
        self.capacity = max(self.capacity, self._length)

    def seize(self) -> bool:
        """Whether nobody stores, views or writes it: if so it is the caller's, to fill."""
        if self.writing or self._links != 1:
            return False
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(self._fd, fcntl.LOCK_SH)  # it was lost in the attempt
            return False
        self.writing = True
        return True

    @property
    def is_taken(self) -> bool:
        """Whether no payload's name leads to it. Somebody may still view what was in it."""
        return self._links <= 1

    def shrink(self) -> None:
        """Give back what the payload in it does not need."""
        if self.capacity > self._length:
            self.capacity = self._length
            self._pages = None
            os.ftruncate(self._fd, HEAD + self.capacity)

    def drop(self) -> None:
        """Keep it no more: its memory goes with the payload in it, or with the last view."""
        if self._path is None:
            return
        self._path.unlink(missing_ok=True)
        self.shrink()
        os.close(self._fd)
        self._path = self._pages = None

    def check_integrity(self) -> None:
        """Raise AssertionError if the file is not as large as it should be."""
        if self._path is not None and os.fstat(self._fd).st_size != HEAD + self.capacity:
            raise AssertionError(f"{self._path.name} does not have the size that was written")

    @property
    def _links(self) -> int:
        return os.fstat(self._fd).st_nlink

    def _create(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        while self._path is None:
            path = self._directory / kept_name(self._run, secrets.token_hex(16))
            fd = os.open(path, flags, 0o600)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if is_current(fd, path):
                self._path, self._fd = path, fd
            else:  # removed before it was locked, by somebody who took it for a dead producer's
                os.close(fd)

    def _map(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(mmap.mmap(self._fd, self.capacity, offset=HEAD), np.uint8)


class SegmentPool:
    """The segments that one producer keeps. Its methods are called under the producer's lock."""

    def __init__(self, run: str, directory: Path) -> None:
        self._run = run
        self._directory = directory
        self._kept: list[Segment] = []  # the one that was written last comes last

    @property
    def spare(self) -> int:
        """Bytes that are kept and store nothing."""
        return sum(segment.capacity - segment.stored for segment in self._kept)

    def acquire(self, size: int) -> Segment:
        """A segment for `size` bytes, a kept one if it is not far larger or smaller."""
        near = [s for s in self._kept if size <= 2 * s.capacity <= 4 * size]
        near.sort(key=lambda s: (s.capacity < size, abs(s.capacity - size)))
        for segment in near:
            if segment.seize():
                return segment
        return Segment(self._run, self._directory)

    def settle(self, segment: Segment, *, keep: bool) -> None:
        """`segment` has been written, or that has failed; is it worth keeping?"""
        segment.written()
        if segment in self._kept:
            self._kept.remove(segment)
        full = len(self._kept) >= MAX_KEPT
        if not keep or segment.capacity == 0 or (full and not self._drop_oldest()):
            segment.drop()
        else:
            self._kept.append(segment)

    def give_back(self, excess: int) -> None:
        """Let go of `excess` bytes that store nothing, or of all there are."""
        wanted = self.spare - excess
        for in_use in (False, True):
            for segment in list(self._kept):
                if self.spare <= max(wanted, 0):
                    return
                if not in_use and segment.seize():
                    self._drop(segment)
                elif in_use and not segment.writing:
                    if segment.is_taken:  # its view keeps the memory, as without a pool
                        self._drop(segment)
                    else:
                        segment.shrink()

    def clear(self) -> int:
        """Keep nothing of what is not being written. Returns the bytes that stored nothing."""
        before = self.spare
        for segment in [segment for segment in self._kept if not segment.writing]:
            self._drop(segment)
        return before - self.spare

    def check_integrity(self) -> None:
        """Raise AssertionError if a file is not as large as it should be."""
        for segment in self._kept:
            if not segment.writing:
                segment.check_integrity()

    def _drop(self, segment: Segment) -> None:
        self._kept.remove(segment)
        segment.drop()

    def _drop_oldest(self) -> bool:
        """Make place for another one; False if all are in use."""
        for segment in self._kept:
            if segment.seize():
                self._drop(segment)
                return True
        return False


def drop_orphans(run: str, directory: Path) -> None:
    """Remove the segments that a dead producer of `run` kept, unless somebody views them."""
    for path in directory.glob(kept_pattern(run)):
        with contextlib.suppress(OSError):  # gone, or in use
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(fd)
