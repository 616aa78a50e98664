"""Large payloads within one process: memory is written again, and never under anybody's eyes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from large_payloads import MIB

from antiphon.connector.inproc import InprocConnector
from antiphon.connector.pages import LARGE_BYTES, MAX_KEPT, PagePool, rounded
from antiphon.errors import ConnectorError

assert LARGE_BYTES == MIB


@pytest.fixture
def connector(run: str) -> Iterator[InprocConnector]:
    made = InprocConnector(run, 4 * MIB)
    yield made
    made.check_integrity()
    made.close()


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def put_and_take(connector: InprocConnector, letter: bytes, size: int = MIB) -> memoryview:
    connector.put("put and take", [letter * size])
    return connector.take("put and take")


def test_memory_is_written_again_once_nobody_looks(connector: InprocConnector) -> None:
    first = address(put_and_take(connector, b"a"))
    assert connector.statistics().pooled_bytes == MIB
    view = put_and_take(connector, b"b")
    assert address(view) == first
    assert view == b"b" * MIB


def test_a_view_never_changes(connector: InprocConnector) -> None:
    """C111."""
    tensor = torch.frombuffer(put_and_take(connector, b"a"), dtype=torch.uint8)[7:9]
    for letter in (b"b", b"c"):
        assert put_and_take(connector, letter) == letter * MIB
    assert bytes(tensor.tolist()) == b"aa"
    assert connector.statistics().pooled_bytes == 2 * MIB  # b and c have shared one


def test_what_is_stored_never_changes(connector: InprocConnector) -> None:
    connector.put("a", [b"a" * MIB])
    put_and_take(connector, b"b")
    assert connector.take("a") == b"a" * MIB


def test_lengths_that_are_close_share_memory(connector: InprocConnector) -> None:
    first = address(put_and_take(connector, b"a", 2 * MIB - 5))
    view = put_and_take(connector, b"b", 2 * MIB - 100_000)
    assert address(view) == first
    assert view == b"b" * (2 * MIB - 100_000)


def test_a_small_payload_does_not_hold_the_memory_of_a_large_one(
    connector: InprocConnector,
) -> None:
    put_and_take(connector, b"a", 3 * MIB)
    connector.put("k", [b"b" * MIB])
    assert connector.statistics().pooled_bytes == 3 * MIB


def test_what_is_stored_is_kept_whatever_its_rounding_costs(connector: InprocConnector) -> None:
    connector.put("k", [bytes(2 * MIB + 1)])
    for key in "ab":
        connector.put(key, [bytes(MIB - 100)])
    assert connector.statistics().bytes_held > 4 * MIB - 200
    connector.take("k")
    assert connector.statistics().pooled_bytes == 5 * MIB // 2


@given(st.integers(MIB, 1 << 40))
def test_rounding_costs_a_quarter_at_most(size: int) -> None:
    assert size <= rounded(size) <= size * 5 // 4
    assert rounded(rounded(size)) == rounded(size)


def test_what_is_kept_gives_way_to_what_is_stored(connector: InprocConnector) -> None:
    put_and_take(connector, b"a", 4 * MIB)
    connector.put("small", [b"1"])
    assert connector.statistics().pooled_bytes == 0
    connector.put("large", [bytes(4 * MIB - 1)])
    assert connector.statistics().bytes_held == 4 * MIB


def test_what_is_idle_goes_before_what_is_viewed(connector: InprocConnector) -> None:
    view = put_and_take(connector, b"a", 2 * MIB)
    viewed = address(view)
    put_and_take(connector, b"b", MIB)
    connector.put("small", [bytes(3 * MIB // 2)])
    assert connector.statistics().pooled_bytes == 2 * MIB
    del view
    assert address(put_and_take(connector, b"c", 2 * MIB)) == viewed


def test_a_put_that_fails_keeps_no_memory(connector: InprocConnector) -> None:
    connector.put("a", [bytes(MIB)])
    for key, size in (("a", MIB), ("b", 8 * MIB)):
        with pytest.raises(ConnectorError):
            connector.put(key, [bytes(size)])
        assert connector.statistics().pooled_bytes <= 3 * MIB
    connector.close()
    with pytest.raises(ConnectorError, match="closed"):
        connector.put("c", [bytes(MIB)])
    assert connector.statistics().pooled_bytes == 0


def test_trim_gives_back_what_is_kept_and_leaves_what_is_stored(
    connector: InprocConnector,
) -> None:
    connector.put("stored", [b"s" * MIB])
    put_and_take(connector, b"a", 2 * MIB)
    assert connector.trim() == 2 * MIB
    assert connector.statistics().pooled_bytes == 0
    assert connector.take("stored") == b"s" * MIB
    assert connector.statistics().pooled_bytes == 0


def test_deleting_and_closing_end_what_is_stored(connector: InprocConnector) -> None:
    connector.put("a", [bytes(MIB)])
    connector.delete(["a"])
    assert connector.statistics().pooled_bytes == MIB
    connector.close()
    assert connector.statistics().pooled_bytes == 0


def test_the_number_of_kept_pieces_is_bounded() -> None:
    pool = PagePool()
    taken = [pool.acquire(MIB) for _ in range(MAX_KEPT + 3)]
    pool.limit(1 << 40)
    assert pool.spare == MAX_KEPT * MIB
    del taken
