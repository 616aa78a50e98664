"""KV caches on the wire: what goes in comes out, without a copy, and who may take it in."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_samples import (
    BLOCKS,
    GROUPS,
    IDS,
    LENGTH,
    TOKENS,
    assert_same,
    body_at,
    sample,
    snapshot,
    snapshots,
    whole,
    wire,
)

from antiphon.errors import PayloadError
from antiphon.payload.kv import KvGroup, KvHeader, KvSnapshot, keys_and_values
from antiphon.payload.ref import FieldSpec, Layout
from antiphon.payload.types import Payload, per_request, per_token
from antiphon.payload.wire import CACHE_LIMITS, DEFAULT_LIMITS, Limits, decode, encode

replace = msgspec.structs.replace

# --- round trip -------------------------------------------------------------------------------


@settings(deadline=None, max_examples=120)
@given(cache=snapshots(), checksum=st.booleans())
def test_round_trip(cache: KvSnapshot, checksum: bool) -> None:
    """C22: the cache that arrives is the one that left, whatever its groups and pieces."""
    sent = sample(cache)
    assert_same(decode(wire(sent, checksum=checksum), expect=sent.specs()), sent)


def test_a_cache_and_its_ids_are_announced_behind_the_fields() -> None:
    row, ids = Layout.PER_REQUEST, FieldSpec("kv.tokens", Layout.PER_REQUEST, "int32", (11,))
    rows = FieldSpec("rows", Layout.PER_TOKEN, "float16", (2, 3))
    assert sample().specs() == (
        rows,
        FieldSpec("kv.0", row, "float32", (2, 3, 48)),
        FieldSpec("kv.1", row, "float32", (1, 2, 80)),
        ids,
    )
    assert sample(snapshot(TOKENS)).specs() == (
        rows,
        FieldSpec("kv.0", row, "float32", (2, 2, 10, 2, 3)),
        FieldSpec("kv.1", row, "float32", (1, 2, 10, 1, 5)),
        ids,
    )


def test_the_fields_that_an_adapter_sees_are_its_own() -> None:
    got = decode(wire(sample()))
    assert list(got.fields) == ["rows"]
    assert got.token_ids == IDS
    assert got.cache is not None
    assert got.cache.token_ids == IDS


@pytest.mark.parametrize("count", [LENGTH, LENGTH + 1])
def test_the_token_sampled_behind_the_cache_may_come_along(count: int) -> None:
    sent = sample(snapshot(token_ids=IDS[:count]))
    assert decode(wire(sent)).token_ids == IDS[:count]


def test_token_ids_cross_without_their_cache() -> None:
    """A cache that is lost leaves its consumer the tokens to compute it from."""
    sent = Payload({}, token_ids=(5, 0, 2**31 - 1))
    got = decode(wire(sent), expect=sent.specs())
    assert got.token_ids == (5, 0, 2**31 - 1)
    assert got.cache is None
    assert not got.fields


@pytest.mark.skipif(sys.byteorder != "little", reason="the bytes are those of a little-endian host")
@pytest.mark.parametrize(
    ("checksum", "digest"),
    [
        (False, "d97636728cc7816d54b122d3f04c9806d564dd6c11d52321ee2e247c6fcb9839"),
        (True, "a25572a2a86a37a23306c49bfd4ff98c4f3cef9103e4108042a35c9e04433857"),
    ],
)
def test_a_payload_without_a_cache_has_the_bytes_of_version_1(checksum: bool, digest: str) -> None:
    """Caches came later: readers of before still read all others. Recorded before they came."""
    sent = Payload(
        {
            "hidden": per_token(torch.arange(12, dtype=torch.float32).reshape(3, 4)),
            "codes": per_request(torch.tensor([1, 2, 3], dtype=torch.int64)),
        },
        {"voice": "alto", "speed": 1.25, "frames": 3, "last": True},
    )
    assert hashlib.sha256(wire(sent, checksum=checksum)).hexdigest() == digest


# --- no copies --------------------------------------------------------------------------------


def test_contiguous_pieces_are_sent_from_where_they_lie() -> None:
    """An engine's scattered blocks are parts as they are; what is written later is sent."""
    pool = torch.zeros(9, 48)
    first = (pool[7:8], pool[2:4])  # blocks 7, 2 and 3
    layers = [[first, whole(BLOCKS)[0][1]], whole(BLOCKS)[1]]
    parts = encode(sample(snapshot(layers=layers)))
    pool[7], pool[2], pool[3] = 1.0, 2.0, 3.0
    got = decode(bytearray().join(parts)).cache
    assert got is not None
    assert got.layers[0][0][0][:, 0].tolist() == [1.0, 2.0, 3.0]


def test_each_piece_is_one_part() -> None:
    pool = torch.zeros(200, 48)
    header = replace(BLOCKS, groups=(replace(GROUPS[0], layers=("l",)),), length=800)
    pieces = tuple(pool[n : n + 1] for n in range(200))
    cache = snapshot(header, [[pieces]], tuple(range(800)))
    payload = Payload({}, {}, cache, cache.token_ids)
    limits = Limits(max_fields=2)  # group and ids: pieces do not count
    parts = [memoryview(part).nbytes for part in encode(payload, limits=limits)]
    assert parts.count(48 * 4) == 200
    assert_same(decode(wire(payload), limits=limits), payload)


@pytest.mark.parametrize("header", [BLOCKS, TOKENS], ids=["blocks", "tokens"])
def test_each_layer_arrives_as_one_view_of_the_buffer(header: KvHeader) -> None:
    blob = wire(sample(snapshot(header)))
    got = decode(blob).cache
    assert got is not None
    start = torch.frombuffer(blob, dtype=torch.uint8).data_ptr()
    for layers in got.layers:
        for pieces in layers:
            assert len(pieces) == 1
            assert 0 < pieces[0].data_ptr() - start < len(blob)
            assert pieces[0].is_contiguous()


def test_a_cache_is_never_a_view_of_read_only_memory() -> None:
    blob = bytes(wire(sample()))
    got = decode(blob).cache
    assert got is not None
    got.layers[0][0][0].zero_()
    assert_same(decode(blob), sample())


# --- damage -----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", [1, 2, 3], ids=["first group", "second group", "ids"])
@pytest.mark.parametrize("offset", [0, 40])
def test_a_checksum_finds_a_changed_cache(field: int, offset: int) -> None:
    """C111: corrupt is refused before anything is done with it."""
    pool = whole(BLOCKS)[0]
    cut = [[(pool[0][:1], pool[0][1:]), pool[1]], whole(BLOCKS)[1]]
    sent = sample(snapshot(layers=cut))
    blob = wire(sent, checksum=True)
    assert_same(decode(blob), sent)
    blob[body_at(blob, field, sent) + offset] ^= 1
    with pytest.raises(PayloadError, match="tensors are corrupt"):
        decode(blob)


def test_without_a_checksum_the_same_change_is_not_found() -> None:
    """Otherwise the test above would prove nothing."""
    sent = sample()
    blob = wire(sent)
    blob[body_at(blob, 1, sent) + 2] ^= 1
    got = decode(blob).cache
    assert got is not None
    assert sent.cache is not None
    assert not torch.equal(got.layers[0][0][0], sent.cache.layers[0][0][0])


@settings(deadline=None, max_examples=100)
@given(cache=snapshots(), checksum=st.booleans(), flip=st.integers(1, 255), data=st.data())
def test_a_flipped_byte_never_changes_what_the_cache_is(
    cache: KvSnapshot, checksum: bool, flip: int, data: st.DataObject
) -> None:
    """C85: another model, length or layout is never read out of a damaged payload."""
    sent = sample(cache)
    blob = wire(sent, checksum=checksum)
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= flip
    try:
        got = decode(blob)
    except PayloadError:
        return
    assert got.specs() == sent.specs()
    assert got.cache is not None
    assert got.cache.header == cache.header
    if checksum:
        assert_same(got, sent)  # only padding can have been hit


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_truncation_is_refused(data: st.DataObject) -> None:
    blob = wire(sample())
    with pytest.raises(PayloadError, match="truncated"):
        decode(blob[: data.draw(st.integers(0, len(blob) - 1))])


def test_extra_bytes_are_refused() -> None:
    with pytest.raises(PayloadError, match="64 bytes too many"):
        decode(wire(sample()) + bytes(64))


# --- limits and announced fields --------------------------------------------------------------


def test_a_cache_may_be_larger_than_an_ordinary_payload_if_the_caller_says_so() -> None:
    """On the meta device a cache of 1 GiB costs nothing; what stops it is told by the sentence."""
    header = replace(BLOCKS, groups=GROUPS[:1], length=4)
    huge = torch.empty(1, 1 << 28, device="meta")
    cache = snapshot(header, [[huge, huge]], IDS[:4])
    payload = Payload({}, {}, cache, cache.token_ids)
    with pytest.raises(PayloadError, match=f"larger than {DEFAULT_LIMITS.max_bytes} bytes"):
        encode(payload)
    with pytest.raises(PayloadError, match="not a dense tensor"):
        encode(payload, limits=CACHE_LIMITS)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_bytes=len(wire(sample())) - 1),
        Limits(max_fields=3),
        Limits(max_rank=2),
        Limits(max_header_bytes=200),
    ],
)
def test_limits_hold_on_both_sides(limits: Limits) -> None:
    with pytest.raises(PayloadError):
        encode(sample(), limits=limits)
    with pytest.raises(PayloadError):
        decode(wire(sample()), limits=limits)


def test_what_fits_its_limits_exactly_is_accepted() -> None:
    limits = Limits(max_bytes=len(wire(sample())), max_fields=4, max_rank=3)
    assert_same(decode(wire(sample(), limits=limits), limits=limits), sample())


@pytest.mark.parametrize(
    ("announced", "sentence"),
    [
        (sample(snapshot(replace(BLOCKS, length=8), token_ids=IDS[:9])), "was announced"),
        (sample(snapshot(replace(BLOCKS, dtype="float16"))), "float16.* was announced"),
        (sample(snapshot(token_ids=IDS[:LENGTH])), r"\[10\] was announced"),
        (Payload(sample().fields), r"\['rows'\] were announced"),
        (Payload(sample().fields, token_ids=IDS), r"\['rows', 'kv.tokens'\] were announced"),
    ],
    ids=["length", "dtype", "ids", "no cache", "ids only"],
)
def test_a_cache_must_be_the_one_announced(announced: Payload, sentence: str) -> None:
    with pytest.raises(PayloadError, match=sentence):
        decode(wire(sample()), expect=announced.specs())


def test_a_cache_that_was_announced_must_come() -> None:
    with pytest.raises(PayloadError, match="were announced"):
        decode(wire(Payload(sample().fields)), expect=sample().specs())


def test_keys_and_values_may_be_sent_as_two_pieces() -> None:
    layers = [[(layer[:1], layer[1:]) for layer in group] for group in whole(TOKENS)]
    assert_same(decode(wire(sample(snapshot(TOKENS, layers)))), sample(snapshot(TOKENS)))


# --- who may take it in -----------------------------------------------------------------------

OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "form": ({"form": "tokens"}, "given by tokens"),
    "model": ({"model": "others"}, "other weights .* the same checkpoint"),
    "dtype": ({"dtype": "bfloat16"}, "is bfloat16, this stage's is float32"),
    "first_position": ({"first_position": 3}, "begins at position 3"),
    "groups": ({"groups": GROUPS[:1]}, "has 1 groups, not 2"),
}
OTHER_GROUPS: dict[str, tuple[Any, str]] = {
    "layers": (("l2", "l3"), "layers"),
    "num_kv_heads": (2, "num_kv_heads is 2, this stage's is 1"),
    "head_size": (6, "head_size is 6, this stage's is 5"),
    "block_size": (16, "block_size is 16, this stage's is 8"),
    "layout": ("HND", "layout is 'HND', this stage's is 'NHD'"),
}


def test_an_engine_takes_what_it_would_send_itself() -> None:
    BLOCKS.check_receiver(BLOCKS)


@pytest.mark.parametrize("value", [{"length": 99}, {"salt": "s"}])
def test_what_differs_from_request_to_request_is_no_obstacle(value: dict[str, Any]) -> None:
    replace(BLOCKS, **value).check_receiver(BLOCKS)


@pytest.mark.parametrize("name", OTHERS)
def test_a_cache_of_another_engine_is_refused(name: str) -> None:
    change, sentence = OTHERS[name]
    with pytest.raises(PayloadError, match=sentence):
        replace(BLOCKS, **change).check_receiver(BLOCKS)


@pytest.mark.parametrize("name", OTHER_GROUPS)
def test_a_group_of_another_engine_is_refused(name: str) -> None:
    value, sentence = OTHER_GROUPS[name]
    other = replace(BLOCKS, groups=(GROUPS[0], replace(GROUPS[1], **{name: value})))
    with pytest.raises(PayloadError, match=sentence):
        other.check_receiver(BLOCKS)


def test_every_part_of_a_header_has_its_refusal() -> None:
    assert OTHERS.keys() == set(KvHeader.__struct_fields__) - {"length", "salt"}
    assert OTHER_GROUPS.keys() == set(KvGroup.__struct_fields__)


def test_keys_and_values_come_in_the_order_of_the_header() -> None:
    got = decode(wire(sample(snapshot(TOKENS)))).cache
    assert got is not None
    layers = [layer for group in whole(TOKENS) for layer in group]
    pairs = keys_and_values(got)
    assert len(pairs) == len(layers)
    for (keys, values), layer in zip(pairs, layers, strict=True):
        assert keys.shape == values.shape == layer.shape[1:]
        assert torch.equal(keys, layer[0])
        assert torch.equal(values, layer[1])


def test_blocks_have_no_keys_and_values_for_other_engines() -> None:
    with pytest.raises(PayloadError, match="given in blocks"):
        keys_and_values(snapshot())
