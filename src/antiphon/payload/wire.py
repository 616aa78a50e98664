"""The wire form of a payload: a checked header, then the raw bytes of each tensor.

    prefix   magic, version, flags, total length, header length, crc32 of bodies, crc32 of header
    header   msgpack: name, layout, dtype and shape of each field; metadata; what a KV cache is
    bodies   one per field, row-major, each starting at a multiple of 64 bytes

A KV cache and its token ids are fields too, under reserved names (`kv_fields`): they are announced
and checked like all others, but `Payload.fields` does not have them. A payload without them has the
bytes that it had before they existed, and the version is the same.
Sizes follow from dtypes and shapes alone, so header and bodies cannot contradict each other unseen.
Nothing of a received payload is trusted: only listed dtypes, within limits, and no pickle.
"""

from __future__ import annotations

import math
import struct
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch

from antiphon.errors import PayloadError
from antiphon.payload.kv import KvHeader
from antiphon.payload.kv_fields import RESERVED, check_fields, field_name, id_bytes, read_cache
from antiphon.payload.ref import FieldSpec
from antiphon.payload.types import Field, Payload, Scalar

Buffer = bytes | bytearray | memoryview

MAGIC = b"ANTP"
VERSION = 1
ALIGNMENT = 64  # bytes; enough for every dtype, and a cache line
DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}

_PREFIX = struct.Struct("<4sHHQIII")
_CRC = struct.Struct("<I")  # the prefix's last field: crc32 of the rest of it and of the header
_CHECKSUM = 1  # flag: the crc32 of the bodies is given
_BIG_ENDIAN = 2  # flag: byte order of the bodies
_NATIVE = _BIG_ENDIAN if sys.byteorder == "big" else 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a payload may measure at most, on both sides."""

    max_bytes: int = 1 << 30  # all of it
    max_header_bytes: int = 1 << 20
    max_fields: int = 64
    max_rank: int = 8


DEFAULT_LIMITS = Limits()
CACHE_LIMITS = Limits(max_bytes=1 << 36)  # for edges that carry KV caches


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fields: tuple[FieldSpec, ...]
    meta: dict[str, Scalar]
    kv: KvHeader | None = None


@dataclass(frozen=True, slots=True)
class _Prefix:
    flags: int
    header_end: int  # offset, bytes
    bodies_crc: int


def encode(
    payload: Payload, *, limits: Limits = DEFAULT_LIMITS, checksum: bool = False
) -> list[Buffer]:
    """The parts whose concatenation is the wire form.

    Contiguous CPU tensors are not copied: their parts view the tensors, which must not change until
    the parts have been written. Each piece of a KV cache is a part of its own. Tensors on a device
    are copied to the host, which waits for it. `checksum` adds a crc32 of the bodies (about 1 s per
    GB on either side). Raises PayloadError for what `decode` would refuse.
    """
    specs = payload.specs()
    starts, end = _place(specs, limits)
    header = _encode_header(specs, payload, limits)
    _check_cache(payload, specs)
    bodies = _bodies(payload)
    header_end = _PREFIX.size + len(header)
    base = _aligned(header_end)
    if base + end > limits.max_bytes:
        raise PayloadError(f"The payload has {base + end} bytes; {limits.max_bytes} are allowed.")
    crc = _crc_of(bodies) if checksum else 0
    flags = _NATIVE | (_CHECKSUM if checksum else 0)
    prefix = _PREFIX.pack(MAGIC, VERSION, flags, base + end, len(header), crc, 0)[: -_CRC.size]
    head = prefix + _CRC.pack(zlib.crc32(header, zlib.crc32(prefix))) + header
    parts: list[Buffer] = [head.ljust(base, b"\0")]
    written = 0
    for start, pieces in zip(starts, bodies, strict=True):
        if start > written:
            parts.append(bytes(start - written))
        parts += pieces
        written = start + sum(piece.nbytes for piece in pieces)
    return parts


def decode(
    buffer: Buffer,
    *,
    limits: Limits = DEFAULT_LIMITS,
    expect: Sequence[FieldSpec] | None = None,
) -> Payload:
    """The payload in `buffer`; `expect` are the fields that its reference announced (`specs()`).

    The tensors view a writable buffer and keep it alive; a read-only one is copied once. Each layer
    of a KV cache is in one piece. Raises PayloadError, and nothing else, for whatever is wrong with
    the bytes.
    """
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise PayloadError("The payload's buffer is not contiguous.")
    view = view.cast("B")
    prefix = _read_prefix(view, limits)
    header = _read_header(view[_PREFIX.size : prefix.header_end])
    starts, end = _place(header.fields, limits)
    base = _aligned(prefix.header_end)
    if base + end != view.nbytes:
        raise PayloadError(
            f"The payload's fields need {base + end} bytes, but it has {view.nbytes}."
        )
    if expect is not None:
        _check_expected(header.fields, expect)
    check_fields(header.kv, header.fields)
    bodies = [
        [view[base + start : base + start + _nbytes(spec)]]
        for start, spec in zip(starts, header.fields, strict=True)
    ]
    if prefix.flags & _CHECKSUM and _crc_of(bodies) != prefix.bodies_crc:
        raise PayloadError("The payload's tensors are corrupt: their checksum does not match.")
    fields = _read_fields(view, header.fields, [base + start for start in starts])
    reserved = {name: fields.pop(name).tensor for name in list(fields) if name.startswith(RESERVED)}
    cache, token_ids = read_cache(header.kv, reserved)
    return Payload(fields, header.meta, cache, token_ids)


def _read_prefix(view: memoryview, limits: Limits) -> _Prefix:
    if view.nbytes > limits.max_bytes:
        raise PayloadError(f"The payload has {view.nbytes} bytes; {limits.max_bytes} are allowed.")
    if view.nbytes < _PREFIX.size:
        raise PayloadError(f"The payload is truncated: it has only {view.nbytes} bytes.")
    magic, version, flags, total, header_len, bodies_crc, header_crc = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise PayloadError("The bytes are not a payload of Antiphon.")
    if version != VERSION:
        raise PayloadError(f"The payload has wire version {version}; this is version {VERSION}.")
    if total > view.nbytes:
        raise PayloadError(f"The payload is truncated: {view.nbytes} of {total} bytes are there.")
    if total < view.nbytes:
        raise PayloadError(f"The payload has {view.nbytes - total} bytes too many.")
    if header_len > limits.max_header_bytes:
        raise PayloadError(f"The payload's header has {header_len} bytes, which is too many.")
    header_end = _PREFIX.size + header_len
    if header_end > total:
        raise PayloadError("The payload is corrupt: its header is longer than itself.")
    crc = zlib.crc32(view[: _PREFIX.size - _CRC.size])
    if zlib.crc32(view[_PREFIX.size : header_end], crc) != header_crc:
        raise PayloadError("The payload's header is corrupt: its checksum does not match.")
    if flags & ~(_CHECKSUM | _BIG_ENDIAN) or flags & _BIG_ENDIAN != _NATIVE:
        raise PayloadError(f"The payload has flags {flags:#x}, which this machine cannot read.")
    return _Prefix(flags, header_end, bodies_crc)


def _read_header(data: memoryview) -> _Header:
    try:
        return msgspec.msgpack.decode(data, type=_Header)
    except msgspec.MsgspecError as error:
        raise PayloadError(f"The payload's header is corrupt: {error}.") from error


def _read_fields(
    view: memoryview, specs: Sequence[FieldSpec], offsets: Sequence[int]
) -> dict[str, Field]:
    # A tensor over read-only memory would let a model write where it must not.
    raw = torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)
    if raw.data_ptr() % 8:  # a slice at an odd place: no tensor can view it
        raw = raw.clone()
    fields = {}
    for spec, offset in zip(specs, offsets, strict=True):
        body = raw[offset : offset + _nbytes(spec)]
        if spec.dtype == "bool" and bool((body > 1).any()):
            raise PayloadError(f"Field {spec.name!r} is corrupt: it is bool and holds other bytes.")
        tensor = body.view(DTYPES[spec.dtype]).reshape(spec.shape)
        fields[spec.name] = Field(spec.layout, tensor)
    return fields


def _place(specs: Sequence[FieldSpec], limits: Limits) -> tuple[list[int], int]:
    """Offsets of the bodies from the end of the header, and their end. Checks every field."""
    if len(specs) > limits.max_fields:
        raise PayloadError(f"The payload has {len(specs)} fields; {limits.max_fields} are allowed.")
    if len({spec.name for spec in specs}) != len(specs):
        raise PayloadError("The payload has two fields of the same name.")
    starts = []
    end = 0
    for spec in specs:
        _check_field(spec, limits)
        starts.append(_aligned(end))
        end = starts[-1] + _nbytes(spec)
    return starts, end


def _check_field(spec: FieldSpec, limits: Limits) -> None:
    if spec.dtype not in DTYPES:
        raise PayloadError(f"Field {spec.name!r} has dtype {spec.dtype!r}, which may not cross.")
    if len(spec.shape) > limits.max_rank:
        raise PayloadError(
            f"Field {spec.name!r} has rank {len(spec.shape)}; {limits.max_rank} is allowed."
        )
    if any(size < 0 for size in spec.shape):
        raise PayloadError(f"Field {spec.name!r} has a negative size in its shape.")
    # Empty dimensions count as 1: the strides of an empty tensor must not overflow either.
    extent = math.prod(max(size, 1) for size in spec.shape) * DTYPES[spec.dtype].itemsize
    if extent > limits.max_bytes:
        raise PayloadError(f"Field {spec.name!r} is larger than {limits.max_bytes} bytes.")


def _check_expected(fields: Sequence[FieldSpec], expect: Sequence[FieldSpec]) -> None:
    if [spec.name for spec in fields] != [spec.name for spec in expect]:
        there, announced = ([spec.name for spec in specs] for specs in (fields, expect))
        raise PayloadError(f"The payload has the fields {there}; {announced} were announced.")
    for spec, other in zip(fields, expect, strict=True):
        if spec != other:
            raise PayloadError(
                f"Field {spec.name!r} is {_describe(spec)}; {_describe(other)} was announced."
            )


def _check_cache(payload: Payload, specs: Sequence[FieldSpec]) -> None:
    for name in payload.fields:
        if name.startswith(RESERVED):
            raise PayloadError(f"Field {name!r} has a name that is reserved for KV caches.")
    cache = payload.cache
    check_fields(None if cache is None else cache.header, specs)
    if cache is not None and cache.token_ids != payload.token_ids:
        raise PayloadError("The payload's token ids are not those of its cache.")


def _encode_header(specs: tuple[FieldSpec, ...], payload: Payload, limits: Limits) -> bytes:
    content: dict[str, object] = {"fields": specs, "meta": dict(payload.meta)}
    if payload.cache is not None:
        content["kv"] = payload.cache.header
    try:
        header = msgspec.msgpack.encode(content)
        msgspec.msgpack.decode(header, type=_Header)
    except (msgspec.MsgspecError, TypeError, OverflowError, UnicodeEncodeError) as error:
        raise PayloadError(f"The payload's header cannot be encoded: {error}.") from error
    if len(header) > limits.max_header_bytes:
        raise PayloadError(
            f"The payload's header has {len(header)} bytes; {limits.max_header_bytes} are allowed."
        )
    return header


def _bodies(payload: Payload) -> list[list[memoryview]]:
    """Of each field the pieces of its bytes, in order."""
    bodies = [[_bytes_of(name, field.tensor)] for name, field in payload.fields.items()]
    if payload.cache is not None:
        for index, layers in enumerate(payload.cache.layers):
            name = field_name(index)
            bodies.append([_bytes_of(name, piece) for pieces in layers for piece in pieces])
    if payload.token_ids:
        bodies.append([id_bytes(payload.token_ids)])
    return bodies


def _bytes_of(name: str, tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes in row-major order, [nbytes]."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise PayloadError(f"Field {name!r} is not a dense tensor with data.")
    flat = tensor.detach().cpu().resolve_neg().contiguous()
    # A tensor of one element is contiguous with any stride, but cannot be viewed as bytes then.
    flat = flat.as_strided((flat.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def _crc_of(bodies: Sequence[Sequence[memoryview]]) -> int:
    crc = 0
    for pieces in bodies:
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
    return crc


def _nbytes(spec: FieldSpec) -> int:
    return math.prod(spec.shape) * DTYPES[spec.dtype].itemsize


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _describe(spec: FieldSpec) -> str:
    return f"{spec.layout} {spec.dtype}{list(spec.shape)}"
