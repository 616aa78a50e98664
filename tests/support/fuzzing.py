"""What the fuzz tests share: how many inputs, how they are damaged, what one of them may cost.

`ANTIPHON_FUZZ_EXAMPLES` is the number of inputs of each test; nobody waits for a few dozen, and a
night has room for a hundred thousand.
"""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import msgspec
import msgspec.yaml
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("ANTIPHON_FUZZ_EXAMPLES", "20"))
CORPUS = Path(__file__).parent.parent / "fuzz" / "corpus"

_CPU_S = 2.0  # of one input, whatever its size; a hundred times what any needs
_CPU_S_PER_BYTE = 1e-5
_MEMORY = 8 << 20  # bytes; modules that are imported late are in it
_MEMORY_PER_BYTE = 100  # an empty list of JSON takes two letters, and becomes an object


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """An input of the corpus."""

    file: str
    reason: str
    error: str | None = None  # how it is refused, a pattern; None: it is taken


def kept(target: str) -> list[Kept]:
    """The corpus of one decoder."""
    index = (CORPUS / "index.yaml").read_bytes()
    found = msgspec.yaml.decode(index, type=dict[str, list[Kept]])
    return found[target]


def seeds(target: str) -> list[bytes]:
    """The bytes of that corpus."""
    return [(CORPUS / target / one.file).read_bytes() for one in kept(target)]


def campaign(times: float = 1.0) -> hypothesis.settings:
    """As many inputs as are asked for, times `times`."""
    return hypothesis.settings(
        max_examples=max(1, int(EXAMPLES * times)),
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


@contextmanager
def bounded(size: int) -> Iterator[None]:
    """Fails where the time of the processor, or memory, is out of proportion to `size` bytes."""
    tracemalloc.start()
    began = time.thread_time()
    try:
        yield
        spent, (_, peak) = time.thread_time() - began, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert spent < _CPU_S + size * _CPU_S_PER_BYTE, f"{size} bytes took {spent:.1f} s"
    assert peak < _MEMORY + size * _MEMORY_PER_BYTE, f"{size} bytes took {peak} bytes of memory"


# --- damage ---------------------------------------------------------------------------------------

_EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 31, (1 << 31) - 1, (1 << 32) - 1)
_WIDE = (*_EDGES, 1 << 32, 1 << 62, 1 << 63, (1 << 63) - 1, (1 << 64) - 1)
_KINDS = ("flip", "cut", "insert", "remove", "repeat", "number", "cross")


@st.composite
def damaged(draw: st.DrawFn, sources: Sequence[bytes], most: int = 4) -> bytes:
    """One of the sources with up to `most` things wrong with it."""
    blob = bytearray(draw(st.sampled_from(sources)))
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, len(blob)))
        match draw(st.sampled_from(_KINDS)):
            case "flip" if at < len(blob):
                blob[at] ^= draw(st.integers(1, 255))
            case "cut":
                del blob[at:]
            case "insert":
                blob[at:at] = draw(st.binary(max_size=16))
            case "remove":
                del blob[at : at + draw(st.integers(1, 16))]
            case "repeat":
                part = bytes(blob[at : at + draw(st.integers(1, 16))])
                blob[at:at] = part * draw(st.sampled_from([1, 2, 100]))
            case "number":
                form = draw(st.sampled_from([">B", "<I", ">I", "<Q", ">Q"]))
                width = struct.calcsize(form)
                value = draw(st.sampled_from(_WIDE)) & ((1 << 8 * width) - 1)
                blob[at : at + width] = struct.pack(form, value)
            case "cross":
                other = draw(st.sampled_from(sources))
                blob[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(blob)


# --- payloads -------------------------------------------------------------------------------------

_PREFIX = struct.Struct("<4sHHQIII")  # as in `payload.wire`
_ALIGNMENT = 64


def sealed(blob: bytes) -> bytes:
    """A damaged payload whose prefix is right again: its length and the header's checksum."""
    if len(blob) < _PREFIX.size:
        return blob
    _, _, flags, _, header_len, bodies_crc, _ = _PREFIX.unpack_from(blob)
    end = min(_PREFIX.size + header_len, len(blob))
    return _packed(blob[_PREFIX.size : end], blob[end:], len(blob), flags, bodies_crc)


def headed(header: bytes, bodies: bytes) -> bytes:
    """A payload of this header, whatever it says, and these bodies."""
    gap = bytes(-(_PREFIX.size + len(header)) % _ALIGNMENT)
    return _packed(header, gap + bodies, _PREFIX.size + len(header) + len(gap) + len(bodies))


def _packed(header: bytes, rest: bytes, total: int, flags: int = 0, bodies_crc: int = 0) -> bytes:
    head = _PREFIX.pack(b"ANTP", 1, flags & 3, total, len(header), bodies_crc, 0)[:-4]
    crc = zlib.crc32(header, zlib.crc32(head))
    return head + struct.pack("<I", crc) + header + rest
