"""The wire codec: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import PayloadError
from antiphon.payload.kv_fields import RESERVED
from antiphon.payload.ref import FieldSpec, Layout
from antiphon.payload.types import Field, Payload, per_request, per_token
from antiphon.payload.wire import ALIGNMENT, DTYPES, Limits, decode, encode

PREFIX = struct.Struct("<4sHHQIII")


def wire(payload: Payload, *, checksum: bool = False) -> bytearray:
    return bytearray().join(encode(payload, checksum=checksum))


def sample() -> Payload:
    return Payload(
        {
            "hidden": per_token(torch.arange(12, dtype=torch.float32).reshape(3, 4)),
            "codes": per_request(torch.tensor([1, 2, 3], dtype=torch.int64)),
        },
        {"voice": "alto", "speed": 1.25, "frames": 3, "last": True},
    )


def forge(header: object, bodies: bytes = b"", **prefix: int) -> bytearray:
    """A blob with this header and correct checksums; `prefix` overrides version, flags, total."""
    packed = header if isinstance(header, bytes) else msgspec.msgpack.encode(header)
    head_end = PREFIX.size + len(packed)
    base = -(-head_end // ALIGNMENT) * ALIGNMENT
    head = PREFIX.pack(
        b"ANTP",
        prefix.get("version", 1),
        prefix.get("flags", 0),
        prefix.get("total", base + len(bodies)),
        len(packed),
        0,
        0,
    )[:-4]
    crc = zlib.crc32(packed, zlib.crc32(head))
    return bytearray((head + struct.pack("<I", crc) + packed).ljust(base, b"\0") + bodies)


def one_field(
    dtype: str = "uint8", shape: tuple[int, ...] = (4,), **more: object
) -> dict[str, Any]:
    spec = {"name": "x", "layout": "per_token", "dtype": dtype, "shape": shape}
    return {"fields": [spec], "meta": {}, **more}


def assert_same(got: Payload, sent: Payload) -> None:
    assert got.specs() == sent.specs()
    assert dict(got.meta) == dict(sent.meta)
    for name, field in sent.fields.items():
        # Compared as bytes: a NaN equals itself here.
        raw, there = (
            f.tensor.flatten().clone().view(torch.uint8) for f in (field, got.fields[name])
        )
        assert torch.equal(raw, there)


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    fields = {}
    free = st.text(max_size=8).filter(lambda name: not name.startswith(RESERVED))
    for name in draw(st.lists(free, max_size=4, unique=True)):
        dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
        shape = draw(st.lists(st.integers(0, 4), max_size=4))
        count = torch.Size(shape).numel() * dtype.itemsize
        raw = torch.tensor(list(draw(st.binary(min_size=count, max_size=count))))
        raw = raw.to(torch.uint8) & (1 if dtype is torch.bool else 255)
        tensor = raw.view(dtype).reshape(shape)
        if draw(st.booleans()):
            tensor = tensor.movedim(0, -1) if tensor.dim() else tensor
        fields[name] = Field(draw(st.sampled_from(Layout)), tensor)
    scalars = st.one_of(
        st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text()
    )
    return Payload(fields, draw(st.dictionaries(st.text(max_size=6), scalars, max_size=4)))


# --- round trip -------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(payload=payloads(), checksum=st.booleans())
def test_round_trip(payload: Payload, checksum: bool) -> None:
    """C22: what the consumer sees is what the producer made, whatever the shapes and dtypes."""
    blob = wire(payload, checksum=checksum)
    assert_same(decode(blob, expect=payload.specs()), payload)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_listed_dtype_crosses(dtype: str) -> None:
    tensor = torch.tensor([[0, 1], [1, 0]]).to(DTYPES[dtype])
    got = decode(wire(Payload({"x": per_token(tensor)}))).fields["x"]
    assert got.tensor.dtype is DTYPES[dtype]
    assert torch.equal(got.tensor, tensor)


def test_an_empty_payload_crosses() -> None:
    assert_same(decode(wire(Payload({}))), Payload({}))


def test_contiguous_tensors_are_not_copied() -> None:
    tensor = torch.zeros(1000)
    parts = encode(Payload({"x": per_token(tensor)}))
    tensor[0] = 1.0
    got = decode(bytearray().join(parts))
    assert got.fields["x"].tensor[0] == 1.0


def test_tensors_view_a_writable_buffer() -> None:
    blob = wire(Payload({"x": per_token(torch.zeros(4, dtype=torch.uint8))}))
    tensor = decode(blob).fields["x"].tensor
    blob[-1] = 9
    assert tensor[-1] == 9


def test_tensors_never_view_read_only_memory() -> None:
    blob = bytes(wire(sample()))
    tensor = decode(blob).fields["hidden"].tensor
    tensor.zero_()
    assert_same(decode(blob), sample())


def test_tensors_outlive_the_buffers_name() -> None:
    payload = decode(memoryview(wire(sample())))
    assert_same(payload, sample())


def test_bodies_are_aligned() -> None:
    for offset in (0, 1, 7):
        blob = bytes(offset) + bytes(wire(sample()))
        payload = decode(memoryview(bytearray(blob))[offset:])
        assert payload.fields["codes"].tensor.data_ptr() % 8 == 0
        assert_same(payload, sample())


def test_a_single_element_of_any_stride_crosses() -> None:
    tensor = torch.arange(8.0)[4::3][:1]
    assert tensor.stride() == (3,)
    assert decode(wire(Payload({"x": per_token(tensor)}))).fields["x"].tensor.tolist() == [4.0]


def test_tensors_that_need_gradients_or_are_negated_views_cross() -> None:
    weight = torch.ones(2, requires_grad=True)
    negated = torch.view_as_complex(torch.tensor([[1.0, 2.0]])).conj().imag
    got = decode(wire(Payload({"w": per_token(weight), "n": per_token(negated)})))
    assert got.fields["w"].tensor.tolist() == [1.0, 1.0]
    assert got.fields["n"].tensor.tolist() == [-2.0]


# --- damage -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(payload=payloads(), checksum=st.booleans(), flip=st.integers(1, 255), data=st.data())
def test_a_flipped_byte_never_changes_what_the_payload_is(
    payload: Payload, checksum: bool, flip: int, data: st.DataObject
) -> None:
    """C85: corrupt means an error, never something else."""
    blob = wire(payload, checksum=checksum)
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= flip
    try:
        got = decode(blob)
    except PayloadError:
        return
    assert got.specs() == payload.specs()
    assert dict(got.meta) == dict(payload.meta)
    if checksum:
        assert_same(got, payload)  # only padding can have been hit


@settings(deadline=None, max_examples=60)
@given(payload=payloads(), data=st.data())
def test_any_truncation_is_refused(payload: Payload, data: st.DataObject) -> None:
    blob = wire(payload)
    with pytest.raises(PayloadError, match="truncated"):
        decode(blob[: data.draw(st.integers(0, len(blob) - 1))])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(blob: bytes) -> None:
    with pytest.raises(PayloadError):
        decode(blob)


@settings(deadline=None, max_examples=150)
@given(payload=payloads(), data=st.data())
def test_a_header_forged_with_correct_checksums_is_still_checked(
    payload: Payload, data: st.DataObject
) -> None:
    """Nothing but PayloadError comes out of a header that somebody made to fit."""
    specs = payload.specs()
    header = bytearray(msgspec.msgpack.encode({"fields": specs, "meta": dict(payload.meta)}))
    for _ in range(data.draw(st.integers(1, 3))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    blob = forge(bytes(header), bytes(data.draw(st.integers(0, 300))))
    try:
        got = decode(blob)
    except PayloadError:
        return
    assert all(spec.dtype in DTYPES for spec in got.specs())


def test_extra_bytes_are_refused() -> None:
    with pytest.raises(PayloadError, match="3 bytes too many"):
        decode(wire(sample()) + b"abc")


def test_a_checksum_finds_a_changed_tensor() -> None:
    """C111."""
    blob = wire(sample(), checksum=True)
    blob[-1] ^= 1
    with pytest.raises(PayloadError, match="tensors are corrupt"):
        decode(blob)


FORGED = {
    "other magic": (bytearray(b"NOPE") + wire(sample())[4:], "not a payload"),
    "other version": (forge(one_field(), bytes(4), version=2), "wire version 2; this is version 1"),
    "unknown flag": (forge(one_field(), bytes(4), flags=64), "flags 0x40"),
    "other byte order": (forge(one_field(), bytes(4), flags=2), "flags 0x2"),
    "no msgpack": (forge(b"\xc1"), "header is corrupt"),
    "not a map": (forge([1, 2]), "header is corrupt"),
    "no fields": (forge({"meta": {}}), "header is corrupt"),
    "unknown key": (forge(one_field(pickle="x"), bytes(4)), "header is corrupt"),
    "nested metadata": (forge({"fields": [], "meta": {"a": [1]}}), "header is corrupt"),
    "unknown dtype": (forge(one_field("complex64"), bytes(32)), "dtype 'complex64'"),
    "object dtype": (forge(one_field("object"), bytes(32)), "dtype 'object'"),
    "negative size": (forge(one_field(shape=(-4,)), bytes(4)), "negative size"),
    "rank 9": (forge(one_field(shape=(1,) * 9), bytes(1)), "rank 9"),
    "huge": (forge(one_field(shape=(2**40, 2**40)), bytes(4)), "larger than"),
    "empty and huge": (forge(one_field(shape=(0, 2**62, 2**62))), "larger than"),
    "body too short": (forge(one_field(shape=(9,)), bytes(4)), "need 73 bytes|need \\d+ bytes"),
    "body too long": (forge(one_field(shape=(2,)), bytes(4)), "need \\d+ bytes, but it has"),
    "bool of 2": (forge(one_field("bool"), b"\0\1\2\1"), "bool and holds other"),
    "same name": (
        forge({"fields": one_field()["fields"] * 2, "meta": {}}, bytes(100)),
        "two fields of the same name",
    ),
}


@pytest.mark.parametrize("case", FORGED)
def test_each_defect_has_its_sentence(case: str) -> None:
    blob, sentence = FORGED[case]
    with pytest.raises(PayloadError, match=sentence):
        decode(blob)


def test_the_forger_can_also_make_what_is_accepted() -> None:
    """Otherwise the cases above would prove nothing."""
    assert decode(forge(one_field(), b"\1\2\3\4")).fields["x"].tensor.tolist() == [1, 2, 3, 4]


def test_a_buffer_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(PayloadError, match="not contiguous"):
        decode(memoryview(wire(sample()))[::2])


# --- limits and announced fields --------------------------------------------------------------


@pytest.mark.parametrize(
    "limits",
    [Limits(max_bytes=100), Limits(max_header_bytes=10), Limits(max_fields=1), Limits(max_rank=1)],
)
def test_limits_hold_on_both_sides(limits: Limits) -> None:
    with pytest.raises(PayloadError):
        encode(sample(), limits=limits)
    with pytest.raises(PayloadError):
        decode(wire(sample()), limits=limits)


def test_what_fits_its_limits_exactly_is_accepted() -> None:
    size = len(wire(sample()))
    limits = Limits(max_bytes=size, max_fields=2, max_rank=2)
    assert_same(decode(bytearray().join(encode(sample(), limits=limits)), limits=limits), sample())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dtype": "float16"}, "float16.* was announced"),
        ({"shape": (3, 5)}, r"\[3, 5\] was announced"),
        ({"layout": Layout.SHARED}, "shared .* was announced"),
        ({"name": "other"}, "'other', 'codes'.* were announced"),
    ],
)
def test_fields_must_be_those_announced(change: dict[str, Any], sentence: str) -> None:
    hidden, codes = sample().specs()
    announced = (msgspec.structs.replace(hidden, **change), codes)
    with pytest.raises(PayloadError, match=sentence):
        decode(wire(sample()), expect=announced)


def test_a_missing_field_is_noticed() -> None:
    with pytest.raises(PayloadError, match="were announced"):
        decode(
            wire(sample()), expect=[*sample().specs(), FieldSpec("x", Layout.SHARED, "bool", ())]
        )


# --- what cannot be sent ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(2, device="meta"),
        torch.eye(2).to_sparse(),
    ],
    ids=["complex64", "float64", "meta", "sparse"],
)
def test_tensors_that_may_not_cross(tensor: torch.Tensor) -> None:
    with pytest.raises(PayloadError, match="'x'"):
        encode(Payload({"x": per_token(tensor)}))


@pytest.mark.parametrize("value", [[1], None, {"a": 1}, 2**70, "\ud800", object()])
def test_metadata_must_be_scalars(value: Any) -> None:
    with pytest.raises(PayloadError, match="header cannot be encoded"):
        encode(Payload({}, {"a": value}))
