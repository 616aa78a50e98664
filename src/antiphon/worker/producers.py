"""The requests whose outputs are wanted: their outlets, and the rows that those are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from antiphon.core.tickets import Ticket
from antiphon.errors import AdapterError
from antiphon.payload.adapters import OutputAdapterFactory, OutputNeeds, StepRows
from antiphon.worker.outlets import Outlet
from antiphon.worker.rows import RowLog


@dataclass(slots=True)
class Producer:
    """One request, or one segment of a session, whose outputs are wanted."""

    uid: str
    epoch: int
    outlets: list[Outlet]
    rows: RowLog | None  # None: no outlet wants tensors
    failed: bool = False

    def release(self, num_positions: int) -> Sequence[StepRows]:
        """Rows of positions that have been accepted by now, which no adapter has seen."""
        return [] if self.rows is None else self.rows.confirm(num_positions)

    def outlet(self, edge: str) -> Outlet | None:
        """The one of this edge, while something may leave on it."""
        open_ = (o for o in self.outlets if o.edge == edge and not (o.over or self.failed))
        return next(open_, None)


def open_producer(
    ticket: Ticket, factories: Mapping[str, OutputAdapterFactory], streams: Mapping[str, bool]
) -> Producer:
    """Raises AdapterError for an edge that is not there, and what adapters raise."""
    outlets = []
    for edge in ticket.edges:
        factory = factories.get(edge)
        if factory is None:
            raise AdapterError(f"the stage has no outgoing edge '{edge}'")
        adapter = factory.open(ticket.uid, ticket.params)
        stream = streams[edge]
        outlets.append(Outlet(ticket.uid, edge, ticket.epoch, adapter, factory.needs, stream))
    rows = None
    if any(wants_tensors(outlet.needs) for outlet in outlets):
        rows = RowLog(
            wants_hidden=any(outlet.needs.include_hidden for outlet in outlets),
            side_names=(n for outlet in outlets for n in outlet.needs.side_outputs),
            first=ticket.first,
        )
    return Producer(ticket.uid, ticket.epoch, outlets, rows)


def wants_tensors(needs: OutputNeeds) -> bool:
    """Whether an adapter is given rows of any kind."""
    return needs.include_hidden or bool(needs.side_outputs)


def wants_steps(needs: OutputNeeds) -> bool:
    """Whether an adapter is told of anything before its request's end."""
    return needs.requires_token_updates or wants_tensors(needs)
