"""KV caches that contradict themselves: neither let in nor sent."""

from __future__ import annotations

import math
import struct
import sys
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_samples import (
    BLOCKS,
    IDS,
    LENGTH,
    PREFIX,
    TOKENS,
    aligned,
    assert_same,
    body_at,
    sample,
    snapshot,
    whole,
    wire,
)

from antiphon.errors import PayloadError
from antiphon.payload.kv import MAX_LENGTH, KvHeader
from antiphon.payload.types import Payload, per_request
from antiphon.payload.wire import DTYPES, decode, encode

replace = msgspec.structs.replace

# --- forged headers ---------------------------------------------------------------------------


def forge(payload: Payload, change: Callable[[dict[str, Any]], None]) -> bytearray:
    """The payload with another header and all checksums and sizes right."""
    blob = wire(payload)
    (header_len,) = struct.unpack_from("<I", blob, 16)
    header = msgspec.msgpack.decode(blob[PREFIX.size : PREFIX.size + header_len])
    bodies = [
        bytes(blob[(at := body_at(blob, index, payload)) : at + math.prod(spec.shape) * 4])
        for index, spec in enumerate(payload.specs())
    ]
    content = dict(zip((spec.name for spec in payload.specs()), bodies, strict=True))
    change(header)
    body = b""
    for spec in header["fields"]:
        size = math.prod(spec["shape"]) * DTYPES[spec["dtype"]].itemsize
        body = body.ljust(aligned(len(body)), b"\0")
        body += content.get(spec["name"], b"")[:size].ljust(size, b"\0")
    return _packed(msgspec.msgpack.encode(header), body)


def _packed(header: bytes, bodies: bytes) -> bytearray:
    base = aligned(PREFIX.size + len(header))
    flags = 2 if sys.byteorder == "big" else 0
    head = PREFIX.pack(b"ANTP", 1, flags, base + len(bodies), len(header), 0, 0)[:-4]
    crc = zlib.crc32(header, zlib.crc32(head))
    return bytearray((head + struct.pack("<I", crc) + header).ljust(base, b"\0") + bodies)


def kv(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["kv"].update(values)


def group(index: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["kv"]["groups"][index].update(values)


def field(index: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    """Field 0 is ordinary, 1 and 2 are the groups', 3 are the ids."""
    return lambda header: header["fields"][index].update(values)


def more(**spec: Any) -> Callable[[dict[str, Any]], None]:
    added = {"name": "kv.2", "layout": "per_request", "dtype": "int32", "shape": [1], **spec}
    return lambda header: header["fields"].append(added)


def less(index: int) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["fields"].pop(index)


def swapped(header: dict[str, Any]) -> None:
    header["fields"][1:3] = reversed(header["fields"][1:3])


def without_header(header: dict[str, Any]) -> None:
    del header["kv"]


def without_groups(header: dict[str, Any]) -> None:
    header["kv"]["groups"] = []
    del header["fields"][1:3]


FORGED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "no header": (without_header, r"reserved fields \['kv.0', 'kv.1', 'kv.tokens'\], but no cache"),
    "header is a list": (lambda header: header.update(kv=[1]), "header is corrupt"),
    "unknown key": (kv(pickle="x"), "unknown field `pickle`"),
    "unknown key of a group": (group(0, stride=4), "unknown field `stride`"),
    "unknown form": (kv(form="pages"), "Invalid enum value 'pages'"),
    "model is a number": (kv(model=5), "header is corrupt"),
    "salt is a number": (kv(salt=5), "header is corrupt"),
    "length is a fraction": (kv(length=9.5), "header is corrupt"),
    "no tokens": (kv(length=0), "has 0 tokens; 1 to"),
    "negative length": (kv(length=-10), "has -10 tokens; 1 to"),
    "huge length": (kv(length=MAX_LENGTH + 1), f"has {MAX_LENGTH + 1} tokens; 1 to {MAX_LENGTH}"),
    "negative position": (kv(first_position=-1), "begins at position -1"),
    "huge position": (kv(first_position=MAX_LENGTH + 1), "begins at position"),
    "no groups": (without_groups, "has no layers"),
    "a group without layers": (group(1, layers=[]), "or a group without any"),
    "same layer twice": (group(0, layers=["l0", "l0"]), "two layers of the same name"),
    "same layer in two groups": (group(1, layers=["l0"]), "two layers of the same name"),
    "no heads": (group(0, num_kv_heads=0), "num_kv_heads is 0"),
    "negative heads": (group(1, num_kv_heads=-2), "num_kv_heads is -2"),
    "no head size": (group(0, head_size=0), "head_size is 0"),
    "no block size": (group(0, block_size=0), "block_size is 0"),
    "negative block size": (group(1, block_size=-8), "block_size is -8"),
    "cache of another dtype": (kv(dtype="int32"), "float32, its cache is int32"),
    "field of another dtype": (field(2, dtype="int32"), "'kv.1' is per_request int32"),
    "field of another layout": (field(1, layout="per_token"), "'kv.0' is per_token"),
    "a missing group": (less(2), r"fields \['kv.0', 'kv.tokens'\]; it must have"),
    "no ids": (less(3), r"fields \['kv.0', 'kv.1'\]; it must have"),
    "one group too many": (more(), "'kv.2'.*; it must have"),
    "another reserved name": (more(name="kv.x"), "'kv.x'.*; it must have"),
    "other order": (swapped, r"fields \['kv.1', 'kv.0', 'kv.tokens'\]; it must have"),
    "one header group too few": (
        lambda header: header["kv"]["groups"].pop(),
        r"it must have \['kv.0', 'kv.tokens'\]",
    ),
    "one layer too few": (group(0, layers=["l0"]), r"has the shape \[1, 3, elements of a block\]"),
    "one layer too many": (group(1, layers=["x", "y"]), r"has the shape \[2, 2, elements"),
    "one block too few": (field(1, shape=[2, 2, 48]), r"\[2, 2, 48\]; .* \[2, 3, elements"),
    "one block too many": (field(2, shape=[1, 3, 80]), r"\[1, 3, 80\]; .* \[1, 2, elements"),
    "longer than its blocks": (kv(length=13), r"has the shape \[2, 4, elements"),
    "shorter than its blocks": (kv(length=8), r"has the shape \[2, 2, elements"),
    "other block size": (group(0, block_size=5), r"has the shape \[2, 2, elements"),
    "blocks of nothing": (field(1, shape=[2, 3, 0]), r"\[2, 3, 0\]; its cache has"),
    "a number": (field(1, shape=[]), r"\[\]; its cache has"),
    "rank 2": (field(1, shape=[2, 144]), r"\[2, 144\]; its cache has"),
    "rank 4": (field(1, shape=[2, 3, 48, 1]), r"\[2, 3, 48, 1\]; its cache has"),
    "blocks said to be tokens": (kv(form="tokens"), r"has the shape \[2, 2, 10, 2, 3\]"),
    "ids of another dtype": (field(3, dtype="int64"), "not a row of int32"),
    "ids of another layout": (field(3, layout="shared"), "not a row of int32"),
    "ids of rank 2": (field(3, shape=[11, 1]), "not a row of int32"),
    "ids of rank 0": (field(3, shape=[]), "not a row of int32"),
    "one id too few": (field(3, shape=[9]), "has 10 tokens, but the payload has 9 ids"),
    "one id too many": (field(3, shape=[12]), "has 10 tokens, but the payload has 12 ids"),
}

FORGED_TOKENS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "keys without values": (field(1, shape=[2, 1, 10, 2, 3]), r"has the shape \[2, 2, 10, 2, 3\]"),
    "other order": (field(1, shape=[2, 2, 10, 3, 2]), r"has the shape \[2, 2, 10, 2, 3\]"),
    "other length": (kv(length=11), r"has the shape \[2, 2, 11, 2, 3\]"),
    "other heads": (group(0, num_kv_heads=3), r"has the shape \[2, 2, 10, 3, 3\]"),
    "other head size": (group(1, head_size=4), r"has the shape \[1, 2, 10, 1, 4\]"),
    "other layers": (group(1, layers=["x", "y"]), r"has the shape \[2, 2, 10, 1, 5\]"),
    "rank 4": (field(1, shape=[2, 2, 10, 6]), r"\[2, 2, 10, 6\]; its cache has"),
    "tokens said to be blocks": (kv(form="blocks"), r"has the shape \[2, 3, elements of a block\]"),
}


@pytest.mark.parametrize("case", FORGED)
def test_each_defect_of_blocks_has_its_sentence(case: str) -> None:
    change, sentence = FORGED[case]
    with pytest.raises(PayloadError, match=sentence):
        decode(forge(sample(), change))


@pytest.mark.parametrize("case", FORGED_TOKENS)
def test_each_defect_of_tokens_has_its_sentence(case: str) -> None:
    change, sentence = FORGED_TOKENS[case]
    with pytest.raises(PayloadError, match=sentence):
        decode(forge(sample(snapshot(TOKENS)), change))


@pytest.mark.parametrize("header", [BLOCKS, TOKENS], ids=["blocks", "tokens"])
def test_the_forger_can_also_make_what_is_accepted(header: KvHeader) -> None:
    """Otherwise the cases above would prove nothing."""
    sent = sample(snapshot(header))
    assert_same(decode(forge(sent, lambda header: None)), sent)


def test_a_negative_token_id_is_refused() -> None:
    sent = sample()
    blob = wire(sent)
    struct.pack_into("=i", blob, body_at(blob, 3, sent) + 8, -1)
    with pytest.raises(PayloadError, match="negative token id"):
        decode(blob)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"name": "kv.0"}, r"reserved fields \['kv.0'\], but no cache"),
        ({"name": "kv."}, r"reserved fields \['kv.'\], but no cache"),
        ({"name": "kv.tokens", "shape": [0]}, "has 0 token ids"),
        ({"name": "kv.tokens", "shape": [MAX_LENGTH + 2]}, "has 16777218 token ids"),
        ({"name": "kv.tokens", "dtype": "bool"}, "not a row of int32"),
    ],
)
def test_reserved_fields_are_refused_without_a_cache(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PayloadError, match=sentence):
        decode(forge(Payload({}), more(**spec)))


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_whatever_a_forger_writes_only_a_payload_error_comes_out(data: st.DataObject) -> None:
    blob = wire(sample())
    (header_len,) = struct.unpack_from("<I", blob, 16)
    header = bytearray(blob[PREFIX.size : PREFIX.size + header_len])
    for _ in range(data.draw(st.integers(1, 3))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    try:
        got = decode(_packed(bytes(header), bytes(blob[aligned(PREFIX.size + header_len) :])))
    except PayloadError:
        return
    if got.cache is not None:
        got.cache.header.check()


# --- what cannot be sent ----------------------------------------------------------------------

ONE = whole(BLOCKS)

UNSENDABLE: dict[str, tuple[Callable[[], Payload], str]] = {
    "field of a reserved name": (
        lambda: Payload({"kv.0": per_request(torch.zeros(1))}),
        "'kv.0' has a name that is reserved",
    ),
    "field named like the ids": (
        lambda: Payload({"kv.tokens": per_request(torch.zeros(3, dtype=torch.int32))}),
        "'kv.tokens' has a name that is reserved",
    ),
    "ids of another request": (
        lambda: Payload({}, {}, snapshot(), IDS[:LENGTH]),
        "not those of its cache",
    ),
    "no ids": (lambda: sample(snapshot(token_ids=())), "it must have"),
    "ids too few": (lambda: sample(snapshot(token_ids=IDS[:9])), "payload has 9 ids"),
    "ids too many": (lambda: sample(snapshot(token_ids=(*IDS, 1))), "payload has 12 ids"),
    "negative id": (lambda: Payload({}, token_ids=(1, -1)), "negative token id"),
    "id too large": (lambda: Payload({}, token_ids=(1, 2**31)), "not all int32"),
    "id is a fraction": (lambda: Payload({}, token_ids=(1.5,)), "not all int32"),
    "no tokens": (lambda: sample(snapshot(replace(BLOCKS, length=0))), "has 0 tokens"),
    "header of wrong types": (
        lambda: sample(snapshot(replace(BLOCKS, model=5), ONE)),
        "header cannot be encoded",
    ),
    "length of a wrong type": (
        lambda: sample(snapshot(replace(BLOCKS, length="10"), ONE)),
        "header cannot be encoded",
    ),
    "unknown form": (
        lambda: sample(snapshot(replace(BLOCKS, form="pages"), ONE)),
        "header cannot be encoded",
    ),
    "other dtype than said": (
        lambda: sample(snapshot(replace(BLOCKS, dtype="float16"), ONE)),
        "float32, its cache is float16",
    ),
    "a dtype that may not cross": (
        lambda: sample(snapshot(layers=[[layer.double() for layer in layers] for layers in ONE])),
        "dtype 'float64'",
    ),
    "a group too few": (lambda: sample(snapshot(layers=ONE[:1])), "it must have"),
    "a group too many": (lambda: sample(snapshot(layers=[*ONE, ONE[1]])), "it must have"),
    "a layer too few": (lambda: sample(snapshot(layers=[ONE[0][:1], ONE[1]])), r"\[1, 3, 48\]"),
    "no layers": (lambda: sample(snapshot(layers=[[], ONE[1]])), "group 0 do not have the same"),
    "a layer without pieces": (
        lambda: sample(snapshot(layers=[[(), ONE[0][1]], ONE[1]])),
        "group 0 do not have the same",
    ),
    "a block too few": (
        lambda: sample(snapshot(layers=[[layer[:2] for layer in ONE[0]], ONE[1]])),
        r"\[2, 2, 48\]",
    ),
    "layers of two lengths": (
        lambda: sample(snapshot(layers=[[ONE[0][0], ONE[0][1][:2]], ONE[1]])),
        "group 0 do not have the same shape",
    ),
    "pieces of two widths": (
        lambda: sample(snapshot(layers=[[ONE[0][0], (ONE[0][1][:2], ONE[1][0][:1])], ONE[1]])),
        "group 0 do not have the same shape",
    ),
    "pieces of two dtypes": (
        lambda: sample(snapshot(layers=[[ONE[0][0], ONE[0][1].int()], ONE[1]])),
        "group 0 do not have the same shape",
    ),
    "a number for a layer": (
        lambda: sample(snapshot(layers=[ONE[0], [torch.tensor(1.0)]])),
        "'kv.1' has the shape",
    ),
    "no memory behind it": (
        lambda: sample(snapshot(layers=[ONE[0], [ONE[1][0].to("meta")]])),
        "'kv.1' is not a dense tensor",
    ),
    "tokens of another shape": (
        lambda: sample(snapshot(TOKENS, [[layer[:, :9] for layer in g] for g in whole(TOKENS)])),
        r"\[2, 2, 9, 2, 3\]",
    ),
}


@pytest.mark.parametrize("case", UNSENDABLE)
def test_what_would_be_refused_is_not_sent(case: str) -> None:
    make, sentence = UNSENDABLE[case]
    with pytest.raises(PayloadError, match=sentence):
        encode(make())
