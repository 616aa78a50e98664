"""A WAV file without anything that is not needed to hear it.

FFmpeg makes room for as much text as a chunk claims to have, and the standard library stumbles over
chunks that overlap: neither is shown any.
"""

from __future__ import annotations

import struct

_FMT_BYTES = 64  # of the chunk that describes the samples; the longest in use has 40
_MAX_CHUNKS = 1 << 12
_TO_THE_END = 0xFFFFFFFF  # whoever writes to a pipe does not know the length; RF64 has it elsewhere


def plain_wav(data: bytes) -> bytes | None:
    """The file with its two necessary chunks, their lengths as they are; None if one is missing,
    or far behind.

    `data` begins with RIFF or RF64 and WAVE. Samples that are announced and not there are left out.
    """
    fmt, at = None, 12
    for _ in range(_MAX_CHUNKS):
        if at + 8 > len(data):
            break
        kind, size = struct.unpack_from("<4sI", data, at)
        end = len(data) if size == _TO_THE_END else at + 8 + size
        if kind == b"fmt ":
            fmt = data[at + 8 : min(end, at + 8 + _FMT_BYTES)]
        elif kind == b"data" and fmt is not None:
            samples = data[at + 8 : end]
            size = 4 + (8 + len(fmt)) + (8 + len(samples))
            head = struct.pack("<4sI4s4sI", b"RIFF", size, b"WAVE", b"fmt ", len(fmt)) + fmt
            return head + struct.pack("<4sI", b"data", len(samples)) + samples
        at = end + (size & 1)  # chunks begin at even places
    return None
