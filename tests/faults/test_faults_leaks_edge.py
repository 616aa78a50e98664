"""Thousands of payloads of 1 MiB over a real edge, without the garbage collector: nothing stays.

Real schedulers, real worker I/O, real connectors; what a model would compute is made up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import watched
from antiphon.connector.runs import new_run_token, reclaim_dead_runs
from leftovers import run_files
from memory import Resident
from real_edge import PAYLOAD_BYTES, RealEdge
from watched import alive, cycles

REQUESTS = 2000


def finished(edge: RealEdge, uid: str) -> None:
    edge.producer.add(uid, gated=False)
    edge.consumer.add(uid, gated=True)
    (ref,) = edge.produce()
    edge.consumer.scheduler.deliver(uid, ref)
    edge.consume()
    expect(edge, uid, "length", "length")


def producer_fails(edge: RealEdge, uid: str) -> None:
    """Its adapter raises: the consumer is aborted, as the orchestrator does it."""
    edge.producer.add(uid, gated=False, broken=True)
    edge.consumer.add(uid, gated=True)
    assert edge.produce() == []
    edge.consumer.abort(uid)
    edge.consume()
    expect(edge, uid, "length", "abort")


def consumer_fails(edge: RealEdge, uid: str) -> None:
    """Its adapter raises with the payload in its hands."""
    edge.producer.add(uid, gated=False)
    edge.consumer.add(uid, gated=True, broken=True)
    (ref,) = edge.produce()
    edge.consumer.scheduler.deliver(uid, ref)
    edge.consume()
    expect(edge, uid, "length", "adapter")


def damaged(edge: RealEdge, uid: str) -> None:
    edge.producer.add(uid, gated=False)
    edge.consumer.add(uid, gated=True)
    (ref,) = edge.produce()
    edge.damages.corrupt(uid)
    edge.consumer.scheduler.deliver(uid, ref)
    edge.consume()
    edge.damages.heal()
    expect(edge, uid, "length", "payload")


def never_stored(edge: RealEdge, uid: str) -> None:
    """Every attempt to store it fails."""
    edge.faults.fail_puts(matching=uid)
    edge.producer.add(uid, gated=False)
    edge.consumer.add(uid, gated=True)
    assert edge.produce() == []
    edge.consumer.abort(uid)
    edge.consume()
    edge.faults.heal()
    expect(edge, uid, "length", "abort")


def aborted_early(edge: RealEdge, uid: str) -> None:
    """While the producer still samples."""
    edge.producer.add(uid, gated=False, tokens=2)
    edge.consumer.add(uid, gated=True)
    edge.producer.step()
    for side in (edge.producer, edge.consumer):
        side.abort(uid)
    assert edge.produce() == []
    edge.consume()
    expect(edge, uid, "abort", "abort")


def aborted_stored(edge: RealEdge, uid: str) -> None:
    """The payload is stored, and nobody takes it."""
    edge.producer.add(uid, gated=False)
    edge.consumer.add(uid, gated=True)
    (ref,) = edge.produce()
    assert ref.key is not None
    edge.consumer.abort(uid)
    edge.consume()
    edge.producer.scheduler.discard([ref.key])
    assert edge.produce() == []
    expect(edge, uid, "length", "abort")


def aborted_delivered(edge: RealEdge, uid: str) -> None:
    """The consumer has been told of the payload and has not fetched it."""
    edge.producer.add(uid, gated=False)
    edge.consumer.add(uid, gated=True)
    (ref,) = edge.produce()
    edge.consumer.scheduler.deliver(uid, ref)
    edge.consumer.abort(uid)
    edge.consume()
    expect(edge, uid, "length", "abort")


def aborted_taken(edge: RealEdge, uid: str) -> None:
    """The consumer's worker has the payload, and its prompt has not been computed."""
    edge.producer.add(uid, gated=False)
    edge.consumer.add(uid, gated=True)
    (ref,) = edge.produce()
    edge.consumer.scheduler.deliver(uid, ref)
    _, used = edge.consumer.step()
    edge.consumer.abort(uid)
    edge.producer.scheduler.used("big", used)
    edge.consume()
    expect(edge, uid, "length", "abort")


def expect(edge: RealEdge, uid: str, producer: str, consumer: str) -> None:
    assert edge.producer.ended.pop(uid) == producer
    assert edge.consumer.ended.pop(uid) == consumer


LIVES: tuple[Callable[[RealEdge, str], None], ...] = (
    finished,
    producer_fails,
    consumer_fails,
    damaged,
    never_stored,
    aborted_early,
    aborted_stored,
    aborted_delivered,
    aborted_taken,
)


@pytest.fixture(scope="module", params=["inproc", "shm"])
def edge(request: pytest.FixtureRequest) -> Iterator[RealEdge]:
    run = new_run_token()
    made = RealEdge(request.param, run)
    yield made
    made.close()
    reclaim_dead_runs()
    assert not [path for path in run_files() if run in path.name]


@pytest.fixture
def uncollected() -> Iterator[None]:
    with watched.uncollected():
        yield


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
def test_nothing_outlives_its_request(
    edge: RealEdge, uncollected: None, life: Callable[[RealEdge, str], None]
) -> None:
    """C50: what carries a request or its payload is in no cycle. C82: nothing stays stored."""
    for number in range(3):
        life(edge, f"r{number}")
        assert alive() == []
        edge.producer.assert_empty()
        edge.consumer.assert_empty()


def test_nothing_of_ours_is_in_a_cycle(edge: RealEdge, uncollected: None) -> None:
    """C50: nor anything small, which would hold on to more one day."""
    with cycles() as found:
        for life in LIVES:
            life(edge, "r")
    assert found == []


def test_memory_is_flat(edge: RealEdge, uncollected: None) -> None:
    """C24, C25, C50, C82: 2,000 requests of 1 MiB that finish, fail and are aborted in turn."""
    memory = Resident(REQUESTS)
    for number in range(REQUESTS):
        LIVES[number % len(LIVES)](edge, f"r{number}")
        memory.note()
    assert alive() == []
    edge.producer.assert_empty()
    edge.consumer.assert_empty()
    assert memory.growth < 4 * PAYLOAD_BYTES
