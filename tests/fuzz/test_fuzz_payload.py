"""The payload decoder: bytes are a payload, or PayloadError says why not, within bounds.

tests/payload flips, cuts and forges single bytes; here many things are wrong at a time, behind
checksums that are right.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import PayloadError
from antiphon.payload.wire import DTYPES, decode, encode
from fuzzing import bounded, campaign, damaged, headed, sealed, seeds

SEEDS = seeds("payload")


def check(blob: bytes) -> None:
    """It is refused, or what comes out could have been sent."""
    try:
        with bounded(len(blob)):
            got = decode(blob)
    except PayloadError:
        return
    assert all(spec.dtype in DTYPES for spec in got.specs())
    again = decode(bytearray().join(encode(got)), expect=got.specs())
    assert again.specs() == got.specs()
    assert again.token_ids == got.token_ids
    assert (again.cache is None) == (got.cache is None)


@campaign(5)
@given(damaged(SEEDS))
def test_damaged_payloads(blob: bytes) -> None:
    check(blob)


@campaign(20)
@given(damaged(SEEDS))
def test_damaged_payloads_whose_checksums_are_right(blob: bytes) -> None:
    check(sealed(blob))


# --- headers that somebody has written ------------------------------------------------------------

# fmt: off
NUMBERS = st.sampled_from([
    0, 1, 2, 3, 4, 8, 63, 64, 255, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40,
    1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -(1 << 63),
])
# fmt: on
NAMES = st.sampled_from(["", "x", "y", "kv.", "kv.0", "kv.1", "kv.tokens", "a" * 300, "\0", "é"])
TYPES = st.sampled_from([*DTYPES, "float64", "object", "complex64", ""])
ODD: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | NAMES | st.floats() | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def mostly(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(usual, usual, usual, usual, usual, usual, usual, ODD)


def record(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """All of these keys, mostly as they should be, and now and then one more."""
    right = st.fixed_dictionaries({name: mostly(usual) for name, usual in keys.items()})
    return st.tuples(right, st.just({}) | st.dictionaries(NAMES, ODD, max_size=1)).map(
        lambda both: both[0] | both[1]
    )


FIELDS = record(
    name=NAMES,
    layout=st.sampled_from(["per_token", "per_request", "shared"]),
    dtype=TYPES,
    shape=st.lists(NUMBERS, max_size=9),
)
GROUPS = record(
    layers=st.lists(NAMES, max_size=3),
    num_kv_heads=NUMBERS,
    head_size=NUMBERS,
    block_size=NUMBERS,
    layout=NAMES,
)
CACHES = record(
    model=NAMES,
    dtype=TYPES,
    form=st.sampled_from(["blocks", "tokens"]),
    groups=st.lists(GROUPS, max_size=3),
    length=NUMBERS,
    first_position=NUMBERS,
    salt=st.none() | NAMES,
)
HEADERS = record(
    fields=st.lists(FIELDS, max_size=4),
    meta=st.dictionaries(NAMES, mostly(NUMBERS | st.floats() | NAMES | st.booleans()), max_size=3),
    kv=st.none() | CACHES,
)


@campaign(5)
@given(HEADERS, st.integers(0, 300))
def test_headers_that_somebody_has_written(header: dict[str, Any], bodies: int) -> None:
    check(headed(msgspec.msgpack.encode(header), bytes(bodies)))


# fmt: off
TOKENS = st.sampled_from([
    b"\x82", b"\x81", b"\x80", b"\x90", b"\x91", b"\x94", b"\xc0", b"\xc2", b"\xc3", b"\x04",
    b"\xa6fields", b"\xa4meta", b"\xa2kv", b"\xa4name", b"\xa6layout", b"\xa9per_token",
    b"\xa5dtype", b"\xa5uint8", b"\xa5shape", b"\xa6groups", b"\xa6length", b"\xa1x", b"\xa1\xff",
    b"\xff", b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", b"\xd3\x80\0\0\0\0\0\0\0",
    b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xd6\xff\0\0\0\0", b"\xc7\x0c\xff",
    b"\x91" * 1500, b"\x81\xa1x" * 1500, b"\xc1",
])
# fmt: on


@campaign(10)
@given(st.lists(TOKENS, max_size=40).map(b"".join))
def test_headers_of_any_tokens(header: bytes) -> None:
    """Counts without end, lists in lists, texts that are none."""
    check(headed(header, bytes(4)))
    check(headed(b"\x82\xa6fields\x90\xa4meta" + header, b""))
    check(headed(b"\x82\xa4meta\x80\xa6fields\x91\x84" + header, bytes(4)))
