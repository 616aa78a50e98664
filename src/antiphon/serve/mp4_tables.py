"""How many samples an MP4 file says that it has, before FFmpeg believes it.

FFmpeg makes an entry of its index for each sample that a table announces, whether the file has the
bytes or not: 20 kB can ask for gigabytes. It also reads every table wherever it stands, so they are
looked for in everything but the media data. ISO/IEC 14496-12 has the boxes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from antiphon.errors import InvalidRequestError

MAX_SAMPLES = 1 << 20
"""Index entries of a file. Ten minutes of AAC have 28,000; an entry takes about 40 bytes."""
_MAX_BOXES = 1 << 17
_MAX_TRACKS = 64
_MAX_TABLES = 1 << 16  # a recording in fragments has one in each
_TABLES = (b"stsz", b"stz2", b"trun", b"stco", b"co64")
_PER_ENTRY = 512  # samples without a codec are put into entries of more than these


def check_tables(data: bytes, name: str) -> None:
    """Raise InvalidRequestError for a file that announces too many samples, or hides its tables."""
    header = _but_media(data)
    if header is None or b"cmov" in header or _too_many_tables(header):
        raise InvalidRequestError(
            f"{name} has a header too complicated to be read; convert it to plain M4A"
        )
    # Behind a box's name: version and flags, and for stsz and stz2 the samples' size.
    places = ((b"stsz", 8), (b"stz2", 8), (b"trun", 4))
    announced = sum(sum(_numbers(header, kind, offset)) for kind, offset in places)
    chunks = sum(_numbers(header, b"stco", 4)) + sum(_numbers(header, b"co64", 4))
    announced = max(announced, chunks * (_largest_chunk(header) // _PER_ENTRY + 1))
    if announced > MAX_SAMPLES:
        raise InvalidRequestError(
            f"{name} announces {announced} samples, more than any sound of ten minutes needs;"
            " convert it to M4A with AAC"
        )


def _too_many_tables(header: bytes) -> bool:
    """More than anybody writes, and than can be looked at in no time."""
    tables = sum(header.count(kind) for kind in _TABLES)
    return header.count(b"stsc") > _MAX_TRACKS or tables > _MAX_TABLES


def _but_media(data: bytes) -> bytes | None:
    """All boxes of the file but those of kind mdat; None for more than anybody writes."""
    parts, at = list[bytes](), 0
    for _ in range(_MAX_BOXES):
        if at + 8 > len(data):
            return b"".join(parts)
        size, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if size == 1 and at + 16 <= len(data):
            (size,), head = struct.unpack_from(">Q", data, at + 8), 16
        end = len(data) if size == 0 else at + max(size, head)
        if kind != b"mdat":
            parts.append(data[at:end])
        at = end
    return None


def _found(header: bytes, kind: bytes) -> Iterator[int]:
    """Where the boxes of this kind may be: the place behind each name."""
    at = header.find(kind)
    while at >= 0:
        yield at + len(kind)
        at = header.find(kind, at + 1)


def _numbers(header: bytes, kind: bytes, offset: int) -> Iterator[int]:
    """The number that stands `offset` bytes behind each box's name."""
    for at in _found(header, kind):
        if at + offset + 4 <= len(header):
            yield struct.unpack_from(">I", header, at + offset)[0]


def _largest_chunk(header: bytes) -> int:
    """Samples per chunk, at most: in entries of three numbers, the second."""
    largest = 0
    for at in _found(header, b"stsc"):
        first = at + 8
        if first > len(header):
            continue
        entries = min(struct.unpack_from(">I", header, at + 4)[0], (len(header) - first) // 12)
        table = np.frombuffer(header, ">u4", 3 * entries, first)
        largest = max(largest, int(table[1::3].max(initial=0)))
    return largest
