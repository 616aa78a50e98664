"""The receiving ends of a stage's edges: one inlet per consuming request.

Chunks come in the order of the scheduler's fetches. What an adapter makes of them stays here as
long as the request may need it: a preempted request is computed again from the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from antiphon.connector.base import Connector
from antiphon.core.tickets import Arrived, Fetch
from antiphon.errors import AdapterError
from antiphon.payload import wire
from antiphon.payload.adapters import Input, InputAdapter, InputAdapterFactory


@dataclass(slots=True)
class DecodeRows:
    """The rows that output tokens are computed with: token r with row r."""

    rows: list[torch.Tensor] = field(default_factory=list)  # each [width]
    padding: torch.Tensor | None = None  # [width]; None: nothing past the last row

    def append(self, rows: torch.Tensor) -> None:
        """More rows, [n, width]. Raises AdapterError for another shape."""
        width = self.rows[0].shape[0] if self.rows else rows.shape[-1]
        if rows.ndim != 2 or rows.shape[1] != width:
            raise AdapterError(f"rows of shape {tuple(rows.shape)}; this request has [n, {width}]")
        self.rows += rows.clone().unbind(0)  # a view of shared memory would keep all of it

    def get(self, index: int) -> torch.Tensor | None:
        """Row `index`, or the padding past the last one."""
        return self.rows[index] if index < len(self.rows) else self.padding


class Inlets:
    """Takes chunks out of the connector and keeps what their requests need of them."""

    def __init__(
        self,
        connector: Connector,
        factories: Mapping[str, InputAdapterFactory],
        *,
        takes_rows: bool,
    ) -> None:
        self._connector = connector
        self._factories = factories
        self._takes_rows = takes_rows
        self._adapters: dict[str, InputAdapter] = {}
        self.prompt_rows: dict[str, torch.Tensor] = {}  # uid: [num_tokens, width]
        self.decode_rows: dict[str, DecodeRows] = {}

    def fetch(self, fetch: Fetch) -> Arrived:
        """Take one chunk in. Raises ConnectorError, PayloadError, or what the adapter raises."""
        ref = fetch.ref
        payload = None
        if ref.key is not None:
            payload = wire.decode(self._connector.take(ref.key), expect=ref.fields)
        adapter = self._adapter(fetch)
        made = adapter.on_end() if payload is None else adapter.on_payload(payload, last=ref.end)
        self._keep(fetch.uid, made)
        rows = 0 if made.rows is None else len(made.rows)
        return Arrived(fetch.uid, ref.key, ref.end, made.plan, rows)

    def drop(self, uid: str) -> None:
        """Forget a request; unknown ones are ignored."""
        self._adapters.pop(uid, None)
        self.prompt_rows.pop(uid, None)
        self.decode_rows.pop(uid, None)

    def __len__(self) -> int:
        return len(self._adapters)

    def check_integrity(self) -> None:
        """Raise AssertionError if rows are kept for a request that has no adapter."""
        if not self.prompt_rows.keys() | self.decode_rows.keys() <= self._adapters.keys():
            raise AssertionError("rows are kept for a request without an adapter")

    def _adapter(self, fetch: Fetch) -> InputAdapter:
        adapter = self._adapters.get(fetch.uid)
        if adapter is None:
            factory = self._factories.get(fetch.ref.edge)
            if factory is None:
                raise AdapterError(f"the stage has no incoming edge '{fetch.ref.edge}'")
            adapter = self._adapters[fetch.uid] = factory.open(fetch.uid, fetch.params)
        return adapter

    def _keep(self, uid: str, made: Input) -> None:
        if made.plan is not None and made.plan.rows_local:
            rows, count = made.prompt_rows, len(made.plan.token_ids)
            if rows is None or rows.ndim != 2 or len(rows) != count:
                shape = None if rows is None else tuple(rows.shape)
                raise AdapterError(f"{count} prompt positions, but rows of shape {shape}")
            self.prompt_rows[uid] = rows
        if made.rows is None and made.padding is None:
            return
        if not self._takes_rows:
            raise AdapterError(
                "this stage computes tokens without rows; set enable_prompt_embeds in its engine"
                " arguments, or return no rows"
            )
        kept = self.decode_rows.setdefault(uid, DecodeRows())
        if made.rows is not None:
            kept.append(made.rows)
        if made.padding is not None:
            kept.padding = made.padding.clone()
