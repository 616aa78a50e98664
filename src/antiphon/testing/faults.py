"""What can go wrong on an edge, at a test's command: stores that fail, payloads that are lost or
damaged, refs that come late, out of order, twice or never. Nothing here is random.

Stages are reached without touching them: start a pipeline in this process with the connector
"antiphon.testing.faults:FaultyInproc", and `faulty(run)` is what rules all its connectors.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from antiphon.connector.base import Buffer, Connector, ConnectorStatistics
from antiphon.connector.inproc import InprocConnector
from antiphon.errors import ConnectorError
from antiphon.payload.ref import Ref

Item = tuple[str, Ref]  # the consuming request's uid, and a chunk for it


class _Damage(enum.Enum):
    LOST = "lost"
    CORRUPT = "corrupt"
    TRUNCATED = "truncated"


@dataclass(slots=True)
class _PutFault:
    matching: str
    left: int | None  # puts that still fail; None: all


class Faults:
    """What the connectors that share it do wrong; nothing until it is told to. Thread-safe.

    `matching` is a part of the keys that are meant, "" means all. Workers name their keys
    "uid/edge/epoch/seq", those of KV caches "uid/edge/epoch/kv<generation>". Of several faults that
    mean a key the one ordered first happens.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._puts: list[_PutFault] = []
        self._takes: list[tuple[str, _Damage]] = []

    def fail_puts(self, count: int | None = None, matching: str = "") -> None:
        """The next `count` puts fail, or with None all of them; nothing is stored then.

        Raises ValueError for a negative count.
        """
        if count is not None and count < 0:
            raise ValueError(f"count is {count}; it must not be negative")
        with self._lock:
            self._puts.append(_PutFault(matching, count))

    def lose(self, matching: str = "") -> None:
        """Payloads are gone when somebody wants to take them."""
        self._damage(matching, _Damage.LOST)

    def corrupt(self, matching: str = "") -> None:
        """The first byte of what is taken is inverted."""
        self._damage(matching, _Damage.CORRUPT)

    def truncate(self, matching: str = "") -> None:
        """The second half of what is taken is missing."""
        self._damage(matching, _Damage.TRUNCATED)

    def heal(self) -> None:
        """No more faults from here on; what is lost stays lost."""
        with self._lock:
            self._puts.clear()
            self._takes.clear()

    def _damage(self, matching: str, damage: _Damage) -> None:
        with self._lock:
            self._takes.append((matching, damage))

    def _fails(self, key: str) -> bool:
        """Whether this put fails; counts it if so."""
        with self._lock:
            for fault in self._puts:
                if fault.matching not in key or fault.left == 0:
                    continue
                if fault.left is not None:
                    fault.left -= 1
                return True
        return False

    def _damage_of(self, key: str) -> _Damage | None:
        with self._lock:
            return next((damage for part, damage in self._takes if part in key), None)


class FaultyConnector(Connector):
    """Another connector with faults, which `faults` orders; without any it does the same.

    A put that fails and a payload that is lost raise ConnectorError and count as failures.
    """

    def __init__(self, inner: Connector, faults: Faults | None = None) -> None:
        self.faults = Faults() if faults is None else faults
        self._inner = inner
        self._lock = threading.Lock()
        self._failures = 0

    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        if self.faults._fails(key):
            raise self._failed(f"Key {key!r} could not be stored: the test wants it so.")
        return self._inner.put(key, parts)

    def take(self, key: str) -> memoryview:
        damage = self.faults._damage_of(key)
        if damage is _Damage.LOST and self._inner.delete([key]):
            raise self._failed(f"Key {key!r} is lost: the test wants it so.")
        view = self._inner.take(key)
        if damage is _Damage.CORRUPT and view.nbytes:
            view[0] ^= 0xFF
        return view[: view.nbytes // 2] if damage is _Damage.TRUNCATED else view

    def delete(self, keys: Iterable[str]) -> int:
        return self._inner.delete(keys)

    def statistics(self) -> ConnectorStatistics:
        inner = self._inner.statistics()
        with self._lock:
            return msgspec.structs.replace(inner, failures=inner.failures + self._failures)

    def check_integrity(self) -> None:
        self._inner.check_integrity()

    def trim(self) -> int:
        return self._inner.trim()

    def close(self) -> None:
        self._inner.close()

    def _failed(self, message: str) -> ConnectorError:
        with self._lock:
            self._failures += 1
        return ConnectorError(message)


# Kept for good: faults can be ordered before the stages start, and outlast a restart. Names of runs
# are not used again.
_of_runs: dict[str, Faults] = {}


def faulty(run: str) -> Faults:
    """What rules all FaultyInproc connectors of `run`, those to come included."""
    return _of_runs.setdefault(run, Faults())


class FaultyInproc(FaultyConnector):
    """The connector between stages of one process, with the faults of its run."""

    def __init__(self, run: str, max_bytes: int) -> None:
        super().__init__(InprocConnector(run, max_bytes), faulty(run))


class RefShuffler:
    """A mailbox between a producer and its consumers that obeys a test: it keeps what is added
    until the test delivers, repeats or loses it, by its index in `pending`.
    """

    def __init__(self) -> None:
        self._pending: list[Item] = []

    @property
    def pending(self) -> tuple[Item, ...]:
        """What is under way, oldest first."""
        return tuple(self._pending)

    def add(self, items: Iterable[Item]) -> None:
        """The producer has sent these."""
        self._pending += items

    def deliver(self, index: int = 0) -> Item:
        """The item, which is under way no more."""
        return self._pending.pop(index)

    def repeat(self, index: int = 0) -> Item:
        """The item, which comes again."""
        return self._pending[index]

    def lose(self, index: int = 0) -> Item:
        """The item, which must not be delivered; its payload stays stored."""
        return self._pending.pop(index)

    def drain(self) -> list[Item]:
        """All that is under way, oldest first."""
        items, self._pending = self._pending, []
        return items
