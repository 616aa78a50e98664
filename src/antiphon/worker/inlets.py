"""The receiving ends of a stage's edges: one inlet per consuming request.

Chunks come in the order of the scheduler's fetches. What an adapter makes of them stays here as
long as the request may need it: a preempted request is computed again from the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from antiphon.connector.base import Connector
from antiphon.core.tickets import Arrived, Fetch
from antiphon.errors import AdapterError
from antiphon.payload.adapters import Input, InputAdapter, InputAdapterFactory
from antiphon.worker.capabilities import NOTHING, Capabilities
from antiphon.worker.chunks import Chunks
from antiphon.worker.kv_inlets import CacheInlets


@dataclass(frozen=True, slots=True)
class PromptRows:
    """What a prompt is made of in place of token ids."""

    rows: torch.Tensor  # [num_tokens, width]
    marks: torch.Tensor | None  # int64 [num_tokens, m]


@dataclass(slots=True)
class DecodeRows:
    """The rows that output tokens are computed with: token r with row r."""

    rows: list[torch.Tensor] = field(default_factory=list)  # each [width]
    padding: torch.Tensor | None = None  # [width]; None: nothing past the last row

    def append(self, rows: torch.Tensor) -> None:
        """More rows, [n, width]."""
        self.rows += rows.clone().unbind(0)  # a view of shared memory would keep all of it

    def get(self, index: int) -> torch.Tensor | None:
        """Row `index`, or the padding past the last one."""
        return self.rows[index] if index < len(self.rows) else self.padding


class Inlets:
    """Takes chunks out of the connector and keeps what their requests need of them.

    `embed_width` is that of the model's input embeddings, None for a model that is given token ids.
    Every row is checked here: one of a wrong shape would break the step for all its requests.
    """

    model: Capabilities = NOTHING  # what the model can do, once it has been loaded

    def __init__(
        self,
        connector: Connector,
        factories: Mapping[str, InputAdapterFactory],
        embed_width: int | None,
        cache_edges: Iterable[str] = (),
    ) -> None:
        self._connector = connector
        self._factories = factories
        self._embed_width = embed_width
        self._adapters: dict[str, InputAdapter] = {}
        self._failed: set[str] = set()  # what else comes for them is thrown away
        self.prompt_rows: dict[str, PromptRows] = {}
        self.decode_rows: dict[str, DecodeRows] = {}
        self.caches = CacheInlets(cache_edges)

    def chunks(self, fetches: Iterable[Fetch]) -> Chunks:
        """What these fetches name, for `fetch` of each."""
        return Chunks(self._connector, fetches)

    def fetch(self, fetch: Fetch, chunks: Chunks) -> Arrived | None:
        """Take one chunk in; None if one of the same request has failed before.

        Raises ConnectorError, PayloadError, or what the adapter raises.
        """
        uid, ref = fetch.uid, fetch.ref
        if uid in self._failed:
            chunks.skip(ref)
            return None
        try:
            made = self._read(fetch, chunks)
            self._keep(uid, made)
            plan, cached = self.caches.keep(uid, made)
        except Exception:
            self._failed.add(uid)
            raise
        rows = 0 if made.rows is None else len(made.rows)
        return Arrived(uid, ref.key, ref.end, plan, rows, cached)

    def drop(self, uid: str) -> None:
        """Forget a request; unknown ones are ignored."""
        self._failed.discard(uid)
        self._adapters.pop(uid, None)
        self.prompt_rows.pop(uid, None)
        self.decode_rows.pop(uid, None)
        self.caches.kept.pop(uid, None)

    def __len__(self) -> int:
        return len(self._adapters.keys() | self._failed)

    def check_integrity(self) -> None:
        """Raise AssertionError if anything is kept for a request that has no adapter."""
        kept = self.prompt_rows.keys() | self.decode_rows.keys() | self.caches.kept.keys()
        if not kept <= self._adapters.keys():
            raise AssertionError("rows or a cache are kept for a request without an adapter")

    def _read(self, fetch: Fetch, chunks: Chunks) -> Input:
        ref = fetch.ref
        payload = None if ref.empty else self.caches.read(ref, chunks)
        adapter = self._adapters.get(fetch.uid)
        if adapter is None:
            factory = self._factories.get(ref.edge)
            if factory is None:
                raise AdapterError(f"the stage has no incoming edge '{ref.edge}'")
            adapter = self._adapters[fetch.uid] = factory.open(fetch.uid, fetch.params)
        return adapter.on_end() if payload is None else adapter.on_payload(payload, last=ref.end)

    def _keep(self, uid: str, made: Input) -> None:
        if made.plan is not None and made.plan.rows_local:
            self.prompt_rows[uid] = self._prompt_rows(made, len(made.plan.token_ids))
        elif made.prompt_rows is not None or made.prompt_marks is not None:
            raise AdapterError("prompt_rows came without a plan that says rows_local")
        if made.rows is None and made.padding is None:
            return
        kept = self.decode_rows.get(uid) or DecodeRows()
        width = self._embed_width if self.model.row_width is None else self.model.row_width
        if made.rows is not None:
            self._check_decode_rows(made.rows, None, width)
            kept.append(made.rows)
        if made.padding is not None:
            self._check_decode_rows(made.padding, width)
            kept.padding = made.padding.clone()
        self.decode_rows[uid] = kept

    def _prompt_rows(self, made: Input, count: int) -> PromptRows:
        rows, marks = made.prompt_rows, made.prompt_marks
        if rows is None:
            raise AdapterError("the plan says rows_local, but no prompt_rows came with it")
        own = self.model.prompt_width
        self._check(rows, count, self._embed_width if own is None else own)
        if marks is None:
            return PromptRows(rows, None)
        if own is None:
            raise AdapterError(
                "prompt_marks came for a model that embeds no prompts; return no marks, or set"
                " prompt_width in the model's capabilities"
            )
        if marks.is_floating_point() or marks.is_complex():
            raise AdapterError(f"prompt_marks are {marks.dtype}; they must be integers")
        self._check(marks, count, None)
        return PromptRows(rows, marks.long())

    def _check_decode_rows(self, rows: torch.Tensor, *shape: int | None) -> None:
        self._check(rows, *shape)
        if rows.is_floating_point() is self.model.integer_rows:
            wanted = "integers" if self.model.integer_rows else "of floating point"
            raise AdapterError(f"decode rows are {rows.dtype}; the model wants {wanted}")

    def _check(self, rows: torch.Tensor, *shape: int | None) -> None:
        """Raise AdapterError for rows of another shape; None stands for any length."""
        if self._embed_width is None:
            raise AdapterError(
                "this stage is given token ids only; set enable_prompt_embeds in its engine"
                " arguments, or return no rows"
            )
        sizes = zip(shape, rows.shape, strict=False)
        if rows.ndim != len(shape) or any(want not in (None, size) for want, size in sizes):
            expected = ", ".join("n" if size is None else str(size) for size in shape)
            raise AdapterError(f"rows of shape {list(rows.shape)}; the stage needs [{expected}]")
