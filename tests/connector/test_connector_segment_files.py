"""The files of large payloads: names, failures, and what is left when somebody dies."""

from __future__ import annotations

import fcntl
import os
import resource
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from large_payloads import MIB, MakeLarge, Other, files, kept, memory, round_trip

from antiphon.connector import parts, segments
from antiphon.connector.runs import reclaim_dead_runs, shm_directory
from antiphon.errors import ConnectorError


def test_files_are_readable_by_their_owner_only(make_shm: MakeLarge, run: str) -> None:
    old = os.umask(0)
    try:
        make_shm().put("k", [bytes(MIB)])
    finally:
        os.umask(old)
    assert len(files(run)) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(run)} == {0o600}


def test_closing_leaves_nothing_and_views_stay(make_shm: MakeLarge, run: str) -> None:
    producer, consumer = make_shm(), make_shm()
    producer.put("stored", [bytes(MIB)])
    producer.put("viewed", [b"v" * (2 * MIB)])
    round_trip(producer, consumer, b"x", 4 * MIB)
    view = consumer.take("viewed")
    producer.close()
    assert [path.suffix for path in files(run)] == [".lock"]
    with pytest.raises(ConnectorError):
        consumer.take("stored")
    consumer.close()
    assert bytes(view) == b"v" * (2 * MIB)


def test_descriptors_are_given_back(make_shm: MakeLarge) -> None:
    producer, consumer = make_shm(), make_shm()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(10):
        producer.put(f"{number}", [bytes(MIB)])
    for number in range(10):
        consumer.take(f"{number}")
        round_trip(producer, consumer, b"x", MIB)
    producer.trim()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_failure_to_grow_leaves_nothing(make_shm: MakeLarge, run: str) -> None:
    """The kernel refuses what is over 2 MiB, as it does when memory runs out."""
    producer, consumer = make_shm(), make_shm()
    round_trip(producer, consumer, b"a", 3 * MIB // 2)
    first = kept(run)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, hard))
    try:
        for size in (3 * MIB, 9 * MIB):  # of the file that is there, and of a new one
            with pytest.raises(ConnectorError, match=f"Writing {size} bytes"):
                producer.put("k", [b"b" * size])
            producer.check_integrity()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert kept(run) == first
    assert (producer.statistics().entries, producer.statistics().bytes_held) == (0, 0)
    assert memory(run) == producer.statistics().pooled_bytes == 3 * MIB // 2
    round_trip(producer, consumer, b"c", 3 * MIB)
    assert kept(run) == first


def test_what_a_killed_producer_kept_is_reclaimed(run: str) -> None:
    """C82: by the next start if nobody of the run lives."""
    with tempfile.TemporaryDirectory(dir=shm_directory()) as name:  # others reclaim, too
        folder = Path(name)
        other = Other(run, folder)
        other.ask("put", "a")
        other.ask("put", "b")
        other.ask("take", "b")
        other.kill()
        assert len(os.listdir(folder)) == 4
        assert reclaim_dead_runs(folder) == 1
        assert os.listdir(folder) == []


def test_a_stage_that_starts_again_removes_what_it_kept_before(
    make_shm: MakeLarge, run: str, other: Other
) -> None:
    """The run lives: another stage's segments and what can still be taken are left alone."""
    neighbour, consumer = make_shm(), make_shm()
    neighbour.put("n", [b"n" * MIB])
    neighbour.put("m", [b"m" * MIB])
    consumer.take("m")
    theirs = kept(run)
    for key in "ab":
        other.ask("put", key)
    view = consumer.take("b")
    other.kill()
    assert len(kept(run)) == 4
    make_shm()
    assert len(kept(run)) == 3  # that of "b" is looked at
    assert bytes(view) == b"b" * MIB
    del view
    make_shm()
    assert kept(run) == theirs
    assert bytes(consumer.take("a")) == b"a" * MIB
    round_trip(neighbour, consumer, b"x", MIB)
    assert kept(run) == theirs


def test_who_has_failed_to_write_again_is_not_taken_for_dead(make_shm: MakeLarge, run: str) -> None:
    """The attempt costs a producer its lock, which it takes again."""
    producer, consumer = make_shm(), make_shm()
    producer.put("a", [b"a" * MIB])
    view = consumer.take("a")
    producer.put("b", [b"b" * MIB])
    assert len(kept(run)) == 2
    del view
    make_shm()
    assert len(kept(run)) == 2


def test_who_writes_for_the_first_time_is_not_taken_for_dead(
    make_shm: MakeLarge, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = make_shm(), make_shm()
    real = parts.write

    def write(fd: int, views: list[memoryview]) -> None:
        make_shm()
        real(fd, views)

    monkeypatch.setattr(parts, "write", write)
    round_trip(producer, consumer, b"a", MIB)
    assert len(kept(run)) == 1


def test_a_segment_that_was_taken_for_an_orphan_is_made_again(
    make_shm: MakeLarge, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its making and its locking it looks as if its producer were dead."""
    producer, consumer = make_shm(), make_shm()
    real, removed = fcntl.flock, []

    def remove_first(fd: int, operation: int) -> None:
        if not removed:
            removed.extend(files(run, ".kept"))
            removed[0].unlink()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    round_trip(producer, consumer, b"a", MIB)
    assert len(kept(run)) == 1


@pytest.mark.parametrize("damage", ["magic", "length"])
def test_a_damaged_segment_is_refused(make_shm: MakeLarge, run: str, damage: str) -> None:
    producer, consumer = make_shm(), make_shm()
    producer.put("k", [bytes(MIB)])
    (path,) = files(run, ".kept")
    at, data = (0, b"?") if damage == "magic" else (8, (MIB + 1).to_bytes(8, sys.byteorder))
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    with pytest.raises(AssertionError, match="size"):
        producer.check_integrity()
    with pytest.raises(ConnectorError, match="Mapping key 'k': the file is damaged"):
        consumer.take("k")
    producer.delete(["k"])


@pytest.mark.parametrize("last", [True, False])
def test_a_connector_that_is_closed_while_it_writes_leaves_nothing(
    make_shm: MakeLarge, run: str, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    """Whether others keep the run alive or not."""
    producer = make_shm()
    if not last:
        make_shm()
    real = segments.Segment.fill

    def then_close(self: segments.Segment, views: list[memoryview], size: int) -> None:
        real(self, views, size)
        producer.close()

    round_trip(producer, producer, b"a", MIB)
    monkeypatch.setattr(segments.Segment, "fill", then_close)
    with pytest.raises(ConnectorError):
        producer.put("k", [bytes(MIB)])
    assert [path.suffix for path in files(run)] == ([] if last else [".lock"])
