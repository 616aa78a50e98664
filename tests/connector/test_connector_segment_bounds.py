"""How much shared memory is kept for payloads to come, and when it is given back."""

from __future__ import annotations

import pytest
from large_payloads import MIB, MakeLarge, kept, memory, round_trip

from antiphon.connector import files as connector_files
from antiphon.connector.segments import MAX_KEPT
from antiphon.errors import ConnectorError


def test_what_is_kept_gives_way_to_what_is_to_be_stored(make_shm: MakeLarge, run: str) -> None:
    """The budget can be used to its last byte, whatever has been kept before."""
    producer, consumer = make_shm(4 * MIB), make_shm()
    round_trip(producer, consumer, b"a", 4 * MIB)
    for number in range(4):
        producer.put(f"small {number}", [bytes(MIB - 1)])
    producer.put("smaller", [bytes(4)])
    assert producer.statistics().bytes_held == 4 * MIB
    assert kept(run) == set()
    with pytest.raises(ConnectorError, match=f"no room for 1 bytes: {4 * MIB} of {4 * MIB} are"):
        producer.put("one more", [b"1"])


def test_no_more_is_kept_than_has_to_go(make_shm: MakeLarge) -> None:
    producer, consumer = make_shm(8 * MIB), make_shm()
    for size in (MIB, 7 * MIB):
        round_trip(producer, consumer, b"a", size)
    producer.put("small", [b"1"])
    assert producer.statistics().pooled_bytes == 7 * MIB  # what was not used for longest is gone


def test_what_is_idle_goes_before_what_is_viewed(make_shm: MakeLarge, run: str) -> None:
    """Letting go of a view's pages frees nothing."""
    producer, consumer = make_shm(4 * MIB), make_shm()
    producer.put("viewed", [bytes(2 * MIB)])
    viewed = kept(run)
    producer.put("idle", [bytes(2 * MIB)])
    view = consumer.take("viewed")
    consumer.take("idle")
    producer.put("small", [b"1"])
    assert kept(run) == viewed
    del view
    producer.put("k", [bytes(2 * MIB)])
    assert kept(run) == viewed


def test_what_is_kept_gives_way_when_the_file_system_is_full(
    make_shm: MakeLarge, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector_files, "free_bytes", lambda directory: 6 * MIB - memory(run))
    producer, consumer = make_shm(), make_shm()
    round_trip(producer, consumer, b"a", 4 * MIB)
    for number in range(6):
        producer.put(f"{number}", [bytes(MIB - 1)])
    assert kept(run) == set()
    with pytest.raises(ConnectorError, match=f"no room for {MIB - 1} bytes: .* left"):
        producer.put("one more", [bytes(MIB - 1)])


def test_a_payload_in_a_larger_file_costs_no_more_than_its_length(
    make_shm: MakeLarge, run: str
) -> None:
    producer, consumer = make_shm(4 * MIB), make_shm()
    round_trip(producer, consumer, b"a", 3 * MIB)
    producer.put("a", [b"a" * (2 * MIB)])
    assert producer.statistics().pooled_bytes == MIB
    producer.put("b", [b"b" * (2 * MIB)])
    assert producer.statistics().bytes_held == 4 * MIB == memory(run)
    for key in "ab":
        assert bytes(consumer.take(key)) == key.encode() * (2 * MIB)


def test_what_is_viewed_does_not_count_when_room_is_short(make_shm: MakeLarge) -> None:
    """As for small payloads: what has been taken is the taker's."""
    producer, consumer = make_shm(4 * MIB), make_shm()
    views = []
    for letter in b"abc":
        producer.put("k", [bytes([letter]) * (4 * MIB)])
        views.append(consumer.take("k"))
    assert [bytes(view[-2:]) for view in views] == [b"aa", b"bb", b"cc"]


def test_stored_and_kept_together_stay_within_the_budget(make_shm: MakeLarge, run: str) -> None:
    producer, consumer = make_shm(10 * MIB), make_shm()
    for number in range(20):
        size = (number % 5 + 1) * MIB
        producer.put("k", [bytes(size)])
        statistics = producer.statistics()
        assert statistics.bytes_held + statistics.pooled_bytes == memory(run) <= 10 * MIB
        consumer.take("k")


def test_the_number_of_kept_files_is_bounded(make_shm: MakeLarge, run: str) -> None:
    """Each has descriptors; what is over is a file that goes with its payload."""
    producer, consumer = make_shm(), make_shm()
    keys = [f"{number}" for number in range(MAX_KEPT + 3)]
    for key in keys:
        producer.put(key, [key.encode() * MIB])
    assert len(kept(run)) == MAX_KEPT
    for key in keys:
        assert bytes(consumer.take(key)) == key.encode() * MIB
    assert len(kept(run)) == MAX_KEPT == producer.statistics().pooled_bytes // MIB - 22
    producer.put("other size", [bytes(8 * MIB)])
    assert len(kept(run)) == MAX_KEPT
    assert producer.statistics().pooled_bytes < 54 * MIB  # the oldest has made place


def test_nothing_is_kept_while_shared_memory_is_scarce(
    make_shm: MakeLarge, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = make_shm(), make_shm()
    producer.put("a", [b"a" * MIB])
    monkeypatch.setattr(connector_files, "is_roomy", lambda directory: False)
    producer.put("b", [b"b" * MIB])
    assert len(kept(run)) == 1
    assert bytes(consumer.take("b")) == b"b" * MIB
    round_trip(producer, consumer, b"c", MIB)
    assert bytes(consumer.take("a")) == b"a" * MIB
    round_trip(producer, consumer, b"d", MIB)
    assert kept(run) == set()


def test_trim_gives_back_what_is_kept_and_leaves_what_is_stored(
    make_shm: MakeLarge, run: str
) -> None:
    producer, consumer = make_shm(), make_shm()
    producer.put("viewed", [b"v" * MIB])
    view = consumer.take("viewed")
    producer.put("stored", [b"s" * (3 * MIB)])
    round_trip(producer, consumer, b"x", 2 * MIB)
    assert producer.trim() == 3 * MIB
    assert kept(run) == set()
    assert producer.statistics().pooled_bytes == 0
    assert memory(run) == 3 * MIB
    assert bytes(view) == b"v" * MIB
    assert bytes(consumer.take("stored")) == b"s" * (3 * MIB)
    assert memory(run) == 0
    assert producer.trim() == 0
    round_trip(producer, consumer, b"y", MIB)
