"""What every connector must do, run against each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from antiphon.connector.base import Connector, ConnectorStatistics
from antiphon.errors import ConnectorError

Make = Callable[..., Connector]


def test_what_is_put_is_taken(make: Make) -> None:
    producer, consumer = make(), make()
    parts = [b"head", bytearray(b""), memoryview(b"-body-"), b"tail"]
    assert producer.put("k", parts) == 14
    assert bytes(consumer.take("k")) == b"head-body-tail"


def test_parts_of_any_item_size_are_stored_as_bytes(make: Make) -> None:
    connector = make()
    assert connector.put("k", [memoryview(bytes(8)).cast("I")]) == 8
    assert connector.take("k").nbytes == 8


def test_an_empty_payload_is_a_payload(make: Make) -> None:
    connector = make()
    assert connector.put("k", []) == 0
    assert connector.statistics().entries == 1
    assert bytes(connector.take("k")) == b""


@pytest.mark.parametrize("pieces", [1, 3000])
def test_a_large_payload_is_stored_like_a_small_one(make: Make, pieces: int) -> None:
    """In one piece or in many, some of them empty; twice, and the view is the taker's own."""
    producer, consumer = make(8 << 20), make()
    whole = bytes(range(251)) * 12_000
    size = len(whole) // pieces
    parts: list[bytes] = [whole[at : at + size] for at in range(0, len(whole), size)]
    for turn in "ab":
        assert producer.put(turn, [b"", *parts, b""]) == len(whole)
        view = consumer.take(turn)
        assert view == whole
        assert (view.readonly, view.format, view.ndim) == (False, "B", 1)
        view[:3] = b"own"
    assert producer.trim() >= 0
    assert producer.statistics().pooled_bytes == 0


def test_a_key_is_taken_once(make: Make) -> None:
    connector = make()
    connector.put("k", [b"x"])
    connector.take("k")
    with pytest.raises(ConnectorError, match="'k' is not stored"):
        connector.take("k")


def test_a_missing_key_is_an_error_and_not_a_wait(make: Make) -> None:
    """C85."""
    with pytest.raises(ConnectorError, match="'nothing' is not stored"):
        make().take("nothing")


def test_a_stored_key_is_not_overwritten(make: Make) -> None:
    first, second = make(), make()
    first.put("k", [b"first"])
    for connector in (first, second):
        with pytest.raises(ConnectorError, match="stored already"):
            connector.put("k", [b"second"])
    assert bytes(second.take("k")) == b"first"


def test_the_view_is_writable_and_the_takers_own(make: Make) -> None:
    connector = make()
    source = bytearray(b"abc")
    connector.put("k", [source])
    source[:] = b"xyz"
    view = connector.take("k")
    assert bytes(view) == b"abc"
    view[0] = ord("A")
    assert bytes(view) == b"Abc"


def test_a_view_outlives_its_connector(make: Make) -> None:
    connector = make()
    connector.put("k", [b"abc"])
    view = connector.take("k")
    connector.close()
    assert bytes(view) == b"abc"


def test_deleting_counts_what_existed(make: Make) -> None:
    producer, consumer = make(), make()
    producer.put("a", [b"1"])
    producer.put("b", [b"2"])
    assert consumer.delete(["a", "unknown", "b", "a"]) == 2
    assert producer.statistics().entries == 0
    with pytest.raises(ConnectorError):
        consumer.take("a")


@pytest.mark.parametrize("key", ["../../etc/passwd", "/", "a\0b", "x" * 5000, "", "\ud800", "ä/ö"])
def test_a_key_is_only_a_name(make: Make, key: str) -> None:
    connector = make()
    connector.put(key, [b"x"])
    assert bytes(connector.take(key)) == b"x"


def test_runs_do_not_see_each_other(make: Make) -> None:
    connector = make()
    other = type(connector)("another_run", 1 << 20)  # type: ignore[call-arg]
    try:
        connector.put("k", [b"x"])
        with pytest.raises(ConnectorError):
            other.take("k")
    finally:
        other.close()


def test_the_budget_holds_and_nothing_is_left_behind(make: Make) -> None:
    connector = make(max_bytes=10)
    connector.put("a", [bytes(6)])
    with pytest.raises(ConnectorError, match="no room for 5 bytes: 6 of 10 are held"):
        connector.put("b", [bytes(5)])
    assert connector.delete(["b"]) == 0
    assert connector.statistics().bytes_held == 6


def test_the_budget_can_be_used_to_the_last_byte(make: Make) -> None:
    connector = make(max_bytes=10)
    assert connector.put("a", [bytes(10)]) == 10


def test_taking_gives_room_back_to_the_producer(make: Make) -> None:
    """C82: a full store recovers."""
    producer, consumer = make(max_bytes=10), make()
    for number in range(20):
        producer.put(f"k{number}", [bytes(10)])
        consumer.take(f"k{number}")
    assert producer.statistics().entries == 0


def test_statistics(make: Make) -> None:
    connector = make()
    connector.put("a", [b"12"])
    connector.put("b", [b"345"])
    connector.put("c", [b"6"])
    connector.take("a")
    connector.delete(["b"])
    with pytest.raises(ConnectorError):
        connector.take("a")
    assert connector.statistics() == ConnectorStatistics(
        entries=1, bytes_held=1, puts=3, takes=1, deletes=1, failures=1
    )


def test_closing_releases_what_nobody_took(make: Make) -> None:
    producer, consumer = make(), make()
    producer.put("k", [b"x"])
    consumer.put("other", [b"y"])
    producer.close()
    assert producer.statistics().entries == 0
    with pytest.raises(ConnectorError):
        consumer.take("k")
    assert bytes(consumer.take("other")) == b"y"


def test_closing_twice_is_harmless_and_use_after_it_an_error(make: Make) -> None:
    connector = make()
    connector.close()
    connector.close()
    with pytest.raises(ConnectorError, match="closed"):
        connector.put("k", [b"x"])
    with pytest.raises(ConnectorError, match="closed"):
        connector.take("k")


def test_1000_aborts_leave_nothing(make: Make) -> None:
    """C82."""
    producer, consumer = make(), make()
    for number in range(1000):
        producer.put(f"r{number}", [bytes(100)])
        consumer.delete([f"r{number}"])
    assert producer.statistics() == ConnectorStatistics(
        entries=0, bytes_held=0, puts=1000, takes=0, deletes=0, failures=0
    )


def test_many_threads_put_and_take(make: Make) -> None:
    producer, consumer = make(), make()

    def work(thread: int) -> None:
        for number in range(50):
            key = f"{thread}-{number}"
            producer.put(key, [key.encode()])
            assert bytes(consumer.take(key)) == key.encode()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert producer.statistics().entries == 0
    assert consumer.statistics().takes == 400


@pytest.mark.parametrize("operation", ["put", "take"])
def test_of_several_threads_one_wins(make: Make, operation: str) -> None:
    connectors = [make() for _ in range(8)]
    if operation == "take":
        connectors[0].put("k", [b"x"])
    barrier = threading.Barrier(8)

    def attempt(connector: Connector) -> bool:
        barrier.wait()
        try:
            if operation == "put":
                connector.put("k", [b"x"])
            else:
                connector.take("k")
        except ConnectorError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, connectors)) == 1
