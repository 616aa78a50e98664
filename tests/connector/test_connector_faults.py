"""The faults that tests order: each happens when it should, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.connector.base import Connector, ConnectorStatistics
from antiphon.connector.inproc import InprocConnector
from antiphon.connector.registry import make_connector
from antiphon.connector.shm import ShmConnector
from antiphon.core.chunks import ChunkOrder
from antiphon.errors import ConnectorError, PayloadError
from antiphon.payload import wire
from antiphon.payload.ref import Layout, Ref
from antiphon.payload.types import Field, Payload
from antiphon.testing.faults import FaultyConnector, FaultyInproc, Item, RefShuffler, faulty


@pytest.fixture(params=[InprocConnector, ShmConnector])
def connector(request: pytest.FixtureRequest, run: str) -> Iterator[FaultyConnector]:
    made = FaultyConnector(request.param(run, 1000))
    yield made
    made.check_integrity()
    made.close()


def put_fails(connector: Connector, key: str) -> bool:
    try:
        connector.put(key, [b"x"])
    except ConnectorError:
        return True
    return False


# --- puts -----------------------------------------------------------------------------------------


def test_without_faults_it_does_what_the_other_does(connector: FaultyConnector) -> None:
    assert connector.put("a", [b"12", b"3"]) == 3
    connector.put("b", [b"4"])
    connector.put("c", [b"56"])
    assert bytes(connector.take("a")) == b"123"
    assert connector.delete(["b", "unknown"]) == 1
    with pytest.raises(ConnectorError, match="'a' is not stored"):
        connector.take("a")
    assert connector.statistics() == ConnectorStatistics(
        entries=1, bytes_held=2, puts=3, takes=1, deletes=1, failures=1
    )


def test_closing_releases_what_is_held(connector: FaultyConnector) -> None:
    connector.put("a", [b"x"])
    connector.close()
    assert connector.statistics().entries == 0
    with pytest.raises(ConnectorError, match="closed"):
        connector.put("b", [b"x"])


class Disagreeing(InprocConnector):
    """Has lost count of what it holds."""

    def check_integrity(self) -> None:
        raise AssertionError("counters and contents disagree")


def test_the_integrity_is_that_of_the_other(run: str) -> None:
    connector = FaultyConnector(Disagreeing(run, 1000))
    with pytest.raises(AssertionError, match="disagree"):
        connector.check_integrity()
    connector.close()


def test_the_next_puts_fail_and_then_no_more(connector: FaultyConnector) -> None:
    connector.faults.fail_puts(2)
    assert [put_fails(connector, "k") for _ in range(3)] == [True, True, False]
    assert bytes(connector.take("k")) == b"x"


def test_a_put_that_fails_leaves_nothing_and_is_counted(connector: FaultyConnector) -> None:
    connector.faults.fail_puts(3)
    for number in range(3):
        assert put_fails(connector, f"k{number}")
    assert connector.statistics() == ConnectorStatistics(
        entries=0, bytes_held=0, puts=0, takes=0, deletes=0, failures=3
    )


def test_a_put_that_fails_may_be_tried_again(connector: FaultyConnector) -> None:
    connector.faults.fail_puts()
    with pytest.raises(ConnectorError, match="'k' could not be stored") as failure:
        connector.put("k", [b"x"])
    assert failure.value.retryable


def test_puts_fail_until_the_connector_is_healed(connector: FaultyConnector) -> None:
    connector.faults.fail_puts()
    assert all(put_fails(connector, f"k{number}") for number in range(50))
    connector.faults.heal()
    assert not put_fails(connector, "k0")


def test_only_the_keys_that_are_meant_fail_and_count(connector: FaultyConnector) -> None:
    connector.faults.fail_puts(1, matching="a/")
    assert not put_fails(connector, "b/0")
    assert put_fails(connector, "a/0")
    assert not put_fails(connector, "a/1")


def test_faults_add_up(connector: FaultyConnector) -> None:
    connector.faults.fail_puts(1)
    connector.faults.fail_puts(1, matching="a")
    assert [put_fails(connector, key) for key in ["a0", "b", "a1", "a2"]] == [
        True,
        False,
        True,
        False,
    ]


def test_no_put_fails_with_a_count_of_zero(connector: FaultyConnector) -> None:
    connector.faults.fail_puts(0)
    assert not put_fails(connector, "k")


def test_a_negative_count_is_refused(connector: FaultyConnector) -> None:
    with pytest.raises(ValueError, match="count is -1"):
        connector.faults.fail_puts(-1)


# --- takes ----------------------------------------------------------------------------------------


def test_a_lost_payload_is_gone_and_nothing_of_it_is_kept(connector: FaultyConnector) -> None:
    connector.put("a", [b"x"])
    connector.put("b", [b"x"])
    connector.faults.lose("a")
    with pytest.raises(ConnectorError, match="'a' is lost"):
        connector.take("a")
    assert bytes(connector.take("b")) == b"x"
    connector.faults.heal()
    with pytest.raises(ConnectorError, match="'a' is not stored"):
        connector.take("a")
    statistics = connector.statistics()
    assert (statistics.entries, statistics.failures) == (0, 2)


def test_what_was_not_taken_before_healing_is_whole(connector: FaultyConnector) -> None:
    connector.put("a", [b"1234"])
    connector.faults.lose()
    connector.faults.heal()
    assert bytes(connector.take("a")) == b"1234"


def test_damage_of_what_was_never_stored_is_the_ordinary_error(connector: FaultyConnector) -> None:
    connector.faults.lose()
    with pytest.raises(ConnectorError, match="'a' is not stored"):
        connector.take("a")


def test_an_empty_payload_cannot_be_damaged(connector: FaultyConnector) -> None:
    connector.faults.corrupt("a")
    connector.faults.truncate("b")
    for key in "ab":
        connector.put(key, [])
        assert bytes(connector.take(key)) == b""


def test_the_fault_that_was_ordered_first_happens(connector: FaultyConnector) -> None:
    connector.put("a", [b"1234"])
    connector.faults.truncate("a")
    connector.faults.lose()
    assert bytes(connector.take("a")) == b"12"


@pytest.mark.parametrize("damage", ["corrupt", "truncate"])
def test_a_damaged_payload_is_noticed_and_the_others_are_whole(
    connector: FaultyConnector, damage: str
) -> None:
    tensor = torch.arange(6, dtype=torch.int32)
    payload = Payload({"codes": Field(Layout.PER_TOKEN, tensor)})
    for key in "ab":
        connector.put(key, wire.encode(payload))
    if damage == "corrupt":
        connector.faults.corrupt("a")
    else:
        connector.faults.truncate("a")
    with pytest.raises(PayloadError):
        wire.decode(connector.take("a"))
    whole = wire.decode(connector.take("b"))
    assert torch.equal(whole.fields["codes"].tensor, tensor)


# --- by run ---------------------------------------------------------------------------------------


def test_all_connectors_of_a_run_obey_its_faults(run: str) -> None:
    """Stages make their connectors themselves, from a name; a test knows the run."""
    faults = faulty(run)
    faults.fail_puts(1)
    kind = "antiphon.testing.faults:FaultyInproc"
    producer, consumer = (make_connector(kind, run, 100) for _ in range(2))
    try:
        assert isinstance(producer, FaultyInproc)
        assert put_fails(producer, "k")
        assert not put_fails(producer, "k")
        faults.lose("k")
        with pytest.raises(ConnectorError, match="'k' is lost"):
            consumer.take("k")
    finally:
        producer.close()
        consumer.close()


def test_runs_have_faults_of_their_own(run: str) -> None:
    faulty(run).fail_puts()
    connector = FaultyInproc(f"{run}_other", 100)
    assert not put_fails(connector, "k")
    connector.close()


# --- refs -----------------------------------------------------------------------------------------


def chunks(count: int) -> list[Item]:
    """A stream of so many chunks for request "c"."""
    return [
        ("c", Ref("p", "edge", seq, end=seq == count - 1, key=f"k{seq}")) for seq in range(count)
    ]


def test_items_stay_until_they_are_delivered_in_any_order() -> None:
    shuffler = RefShuffler()
    first, second, third = chunks(3)
    shuffler.add([first, second])
    assert shuffler.deliver(1) == second
    shuffler.add([third])
    assert shuffler.pending == (first, third)
    assert [shuffler.deliver(), shuffler.deliver()] == [first, third]
    assert not shuffler.pending


def test_a_repeated_item_comes_again() -> None:
    shuffler = RefShuffler()
    first, second = chunks(2)
    shuffler.add([first, second])
    assert shuffler.repeat(1) == second
    assert shuffler.deliver(1) == second


def test_a_lost_item_comes_no_more() -> None:
    shuffler = RefShuffler()
    first, second = chunks(2)
    shuffler.add([first, second])
    assert shuffler.lose() == first
    assert shuffler.drain() == [second]
    assert not shuffler.pending


@settings(deadline=None)  # it tells a slow machine, not a defect
@given(data=st.data(), count=st.integers(1, 8))
def test_a_stream_survives_delays_repeats_and_any_order(data: st.DataObject, count: int) -> None:
    """How a property test drives the mailbox: by drawing what happens to which item."""
    shuffler, order = RefShuffler(), ChunkOrder()
    sending = chunks(count)
    taken: list[int] = []
    while sending or shuffler.pending:
        if not shuffler.pending or (sending and data.draw(st.booleans())):
            shuffler.add([sending.pop(0)])
            continue
        index = data.draw(st.integers(0, len(shuffler.pending) - 1))
        happens = shuffler.repeat if data.draw(st.booleans()) else shuffler.deliver
        _, ref = happens(index)
        order.offer(ref)
        taken += [ref.seq for ref in order.take()]
    assert taken == list(range(count))
    assert (order.next_seq, order.end_seq) == (count, count - 1)
