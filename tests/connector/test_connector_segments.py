"""Large payloads through shared memory: pages are written again, and never under anybody's eyes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from large_payloads import MIB, MakeLarge, Other, kept, round_trip

from antiphon.connector.shm import ShmConnector
from antiphon.errors import ConnectorError

# --- what is stored is what is taken --------------------------------------------------------------


@pytest.mark.parametrize("size", [MIB - 1, MIB, MIB + 1, 3 * MIB + 5])
def test_a_payload_has_its_length_whatever_its_file_has(make_shm: MakeLarge, size: int) -> None:
    producer, consumer = make_shm(), make_shm()
    for letter in (b"a", b"b"):
        round_trip(producer, consumer, letter, size)


def test_payloads_of_other_lengths_are_written_to_the_same_pages(
    make_shm: MakeLarge, run: str
) -> None:
    """Shorter ones, and longer ones, for which the file grows."""
    producer, consumer = make_shm(), make_shm()
    round_trip(producer, consumer, b"a", 3 * MIB)
    first = kept(run)
    for letter, size in [(b"b", 2 * MIB + 1), (b"c", 3 * MIB), (b"d", 5 * MIB), (b"e", 4 * MIB)]:
        round_trip(producer, consumer, letter, size)
        assert kept(run) == first
        producer.check_integrity()
    assert producer.statistics().pooled_bytes == 5 * MIB


def test_a_payload_of_another_order_of_size_gets_pages_of_its_own(
    make_shm: MakeLarge, run: str
) -> None:
    """Otherwise a small one would hold the memory of a large one."""
    producer, consumer = make_shm(), make_shm()
    for size in (MIB, 8 * MIB, 3 * MIB):
        round_trip(producer, consumer, b"x", size)
    assert len(kept(run)) == 3
    assert producer.statistics().pooled_bytes == 12 * MIB


@pytest.mark.parametrize(
    ("there", "size", "spare"),
    [
        ([2, 3], 2, 3),  # exactly as large
        ([5, 3], 2, 6),  # the one that is less too large, not the one that is more so
        ([3, 5], 4, 4),  # large enough rather than nearer
        ([2, 3], 4, 2),  # the one that has to grow less
        ([1, 9], 4, 10),  # none
    ],
)
def test_the_kept_file_that_fits_best_is_taken(
    make_shm: MakeLarge, there: list[int], size: int, spare: int
) -> None:
    """All in MiB."""
    producer = make_shm()
    keys = [f"{number}" for number in there]
    for key, number in zip(keys, there, strict=True):
        producer.put(key, [bytes(number * MIB)])
    producer.delete(keys)
    producer.put("k", [bytes(size * MIB)])
    assert producer.statistics().pooled_bytes == spare * MIB


def test_pieces_lie_one_behind_the_other(make_shm: MakeLarge, run: str) -> None:
    """More of them than the kernel takes at once, the pages half there and half not."""
    producer, consumer = make_shm(), make_shm()
    pieces = [bytes([number % 251]) * (number % 1000) for number in range(6000)]
    whole = b"".join(pieces)
    round_trip(producer, consumer, b"x", len(whole) * 2 // 3)
    first = kept(run)
    for _ in range(2):
        producer.put("k", pieces)
        assert bytes(consumer.take("k")) == whole
    assert kept(run) == first


def test_a_stored_key_is_not_overwritten(make_shm: MakeLarge, run: str) -> None:
    first, second = make_shm(), make_shm()
    first.put("k", [b"1" * MIB])
    for connector in (first, second):
        with pytest.raises(ConnectorError, match="stored already"):
            connector.put("k", [b"2" * MIB])
        connector.check_integrity()
    assert bytes(second.take("k")) == b"1" * MIB
    assert first.statistics().entries == second.statistics().entries == 0


# --- who uses the pages ---------------------------------------------------------------------------


def test_pages_are_written_again_once_nobody_looks(make_shm: MakeLarge, run: str) -> None:
    """C111: and not before."""
    producer, consumer = make_shm(), make_shm()
    producer.put("a", [b"a" * MIB])
    (first,) = kept(run)
    assert producer.statistics().pooled_bytes == 0
    view = consumer.take("a")
    assert producer.statistics().pooled_bytes == MIB
    del view
    producer.put("b", [b"b" * MIB])
    assert kept(run) == {first}
    assert (producer.statistics().bytes_held, producer.statistics().pooled_bytes) == (MIB, 0)


@pytest.mark.parametrize("same_connector", [True, False])
def test_a_view_in_this_process_never_changes(
    make_shm: MakeLarge, run: str, same_connector: bool
) -> None:
    """C111."""
    producer = make_shm()
    consumer = producer if same_connector else make_shm()
    producer.put("a", [b"a" * MIB])
    view = consumer.take("a")
    tensor = torch.frombuffer(view, dtype=torch.uint8)[7:9]  # a part of it is enough
    del view
    for letter in b"bcd":
        round_trip(producer, consumer, bytes([letter]), MIB)
    assert bytes(tensor.tolist()) == b"aa"
    assert len(kept(run)) == 2  # b, c and d have shared one
    del tensor
    producer.put("e", [b"e" * MIB])
    producer.put("f", [b"f" * MIB])
    assert len(kept(run)) == 2


def test_a_view_in_another_process_never_changes(
    make_shm: MakeLarge, run: str, other: Other
) -> None:
    """C111."""
    producer = make_shm()
    producer.put("a", [b"a" * MIB])
    assert other.ask("take", "a") == "True"
    (first,) = kept(run)
    producer.put("b", [b"b" * MIB])
    assert other.ask("look", "a") == "True"
    assert len(kept(run)) == 2
    other.ask("drop", "a")
    producer.put("c", [b"c" * MIB])
    assert len(kept(run)) == 2
    assert other.ask("take", "c") == "True"
    assert other.ask("take", "b") == "True"
    assert first in kept(run)


def test_a_killed_taker_gives_its_pages_back(make_shm: MakeLarge, run: str, other: Other) -> None:
    producer = make_shm()
    producer.put("a", [b"a" * MIB])
    assert other.ask("take", "a") == "True"
    first = kept(run)
    other.kill()
    producer.put("b", [b"b" * MIB])
    assert kept(run) == first


def test_the_pages_of_a_deleted_payload_are_written_again(make_shm: MakeLarge, run: str) -> None:
    producer, consumer = make_shm(), make_shm()
    for letter in b"abc":
        producer.put("k", [bytes([letter]) * MIB])
        assert consumer.delete(["k"]) == 1
    assert len(kept(run)) == 1


def test_a_view_is_writable_and_its_writes_stay_its_own(make_shm: MakeLarge) -> None:
    producer, consumer = make_shm(), make_shm()
    producer.put("a", [b"a" * MIB])
    view = consumer.take("a")
    view[:] = b"x" * MIB
    del view
    round_trip(producer, consumer, b"b", MIB)


def test_of_several_takers_one_wins(make_shm: MakeLarge) -> None:
    connectors = [make_shm() for _ in range(8)]
    barrier = threading.Barrier(8)

    def attempt(connector: ShmConnector) -> bool:
        barrier.wait()
        try:
            return bytes(connector.take("k")) == b"k" * MIB
        except ConnectorError:
            return False

    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            connectors[0].put("k", [b"k" * MIB])
            assert sum(pool.map(attempt, connectors)) == 1


def test_many_threads_never_meet_in_a_segment(make_shm: MakeLarge) -> None:
    """Views live while others put; what is seen is what was put, before and after."""
    producer, consumer = make_shm(), make_shm()

    def work(thread: int) -> None:
        view = None
        for number in range(15):
            key, letter = f"{thread}-{number}", bytes([thread * 16 + number])
            producer.put(key, [letter * MIB])
            if view is not None:
                assert bytes(view) == bytes([letter[0] - 1]) * MIB
            view = consumer.take(key)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert producer.statistics().entries == 0
