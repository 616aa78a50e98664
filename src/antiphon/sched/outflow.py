"""What a producing stage has under way on its outgoing edges: budgets, and stores to be retried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from antiphon.core.budget import BudgetStatistics, EdgeBudget
from antiphon.core.options import OutEdge
from antiphon.payload.ref import Ref


class Outflow:
    """One budget per edge. Knows requests by uid only.

    On an edge with `kv` a request sends one payload, which may leave while the request runs: it is
    counted, and nobody waits for its room.
    """

    def __init__(self, clock: Callable[[], float], edges: Iterable[OutEdge]) -> None:
        self._clock = clock
        edges = tuple(edges)
        self._budgets = {edge.name: EdgeBudget(edge.limits, clock) for edge in edges}
        self._limiting = {e.name: self._budgets[e.name] for e in edges if e.kv is None}
        self._retry_at: float | None = None  # clock value; None: nothing waits to be stored

    def sent(self, refs: Sequence[Ref], alive: Callable[[str], bool]) -> list[str]:
        """The worker has stored these chunks; the requests that must not produce more for now."""
        blocked = []
        for ref in refs:
            budget = self._budgets.get(ref.edge)
            if budget is None or ref.key is None:
                continue
            budget.sent(ref.uid, ref.key, ref.nbytes)
            if ref.edge not in self._limiting or not alive(ref.uid):
                budget.close(ref.uid)
            elif budget.blocked(ref.uid):
                blocked.append(ref.uid)
        return blocked

    def returned(self, keys: Sequence[str], edge: str | None = None) -> None:
        """Consumers have used up these chunks, or nobody will take them; None: of any edge."""
        for name, budget in self._budgets.items():
            if edge is None or name == edge:
                budget.returned(keys)

    def released(self) -> list[str]:
        """Requests that waited for room and have it on every edge, longest waiting first."""
        limiting = self._limiting.values()
        uids = dict.fromkeys(uid for budget in limiting for uid in budget.take_released())
        return [uid for uid in uids if not self.full(uid)]

    def full(self, uid: str) -> bool:
        """Whether any edge has no room for the request, which waits then."""
        full = [budget.blocked(uid) for budget in self._limiting.values()]  # each notes who waits
        return any(full)

    def close(self, uid: str) -> None:
        """The request produces no more; what it has sent counts until it is used up."""
        for budget in self._budgets.values():
            budget.close(uid)

    def drop(self, uid: str) -> list[str]:
        """The request is over on every stage: the keys of what it has sent and nobody needs."""
        return [key for budget in self._budgets.values() for key in budget.drop(uid)]

    # --- retries ------------------------------------------------------------------------------

    def retry_in(self, delay_s: float | None) -> None:
        """Something could not be stored: order a retry after this time; None: nothing to do."""
        if delay_s is not None:
            at = self._clock() + delay_s
            self._retry_at = at if self._retry_at is None else min(at, self._retry_at)

    @property
    def retry_at(self) -> float | None:
        """Value of the clock at which a retry is due."""
        return self._retry_at

    def take_retry(self) -> bool:
        """Whether a retry is due, which counts as ordered then."""
        if self._retry_at is None or self._retry_at > self._clock():
            return False
        self._retry_at = None
        return True

    # --- checks -------------------------------------------------------------------------------

    def statistics(self) -> dict[str, BudgetStatistics]:
        """By edge."""
        return {edge: budget.statistics() for edge, budget in self._budgets.items()}

    def check_integrity(self) -> None:
        """Raise AssertionError if a budget's books disagree."""
        for budget in self._budgets.values():
            budget.check_integrity()
