"""Caches that have arrived for requests of this stage, checked and kept until they are used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError, ConnectorError, PayloadError
from antiphon.payload import wire
from antiphon.payload.adapters import Input
from antiphon.payload.kv import KvSnapshot
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload
from antiphon.worker.chunks import Chunks
from antiphon.worker.kv_cache import KvCaches


class CacheInlets:
    """The part of `Inlets` that knows of caches; `edges` are those that bring some.

    An `ar` stage takes blocks into the engine's own caches, its `receiver`. A generation stage has
    none: its model is given keys and values by position.
    """

    def __init__(self, edges: Iterable[str]) -> None:
        self._edges = frozenset(edges)
        self.receiver: KvCaches | None = None
        self.kept: dict[str, KvSnapshot] = {}  # by uid
        self.recomputed = 0  # requests that compute a cache themselves because it was lost

    def read(self, ref: Ref, chunks: Chunks) -> Payload:
        """The payload of a ref that brings something; a cache in it has been checked.

        A ref without a key brings token ids: a caller's prompt, or what a lost cache covers.

        Where a cache is lost or cannot be used and its token ids are known, they are all that there
        is: the consumer computes it itself. Raises ConnectorError or PayloadError otherwise.
        """
        if ref.key is None:
            return self._lost(ref)
        if ref.edge not in self._edges:
            payload = chunks.take(ref, wire.DEFAULT_LIMITS)
            if payload.cache is not None:
                raise PayloadError(f"Edge '{ref.edge}' brings a KV cache and is not declared to.")
            return payload
        try:
            payload = chunks.take(ref, wire.CACHE_LIMITS)
            self._check(payload.cache)
        except (ConnectorError, PayloadError):
            if not ref.token_ids:
                raise
            return self._lost(ref)
        return payload

    def keep(self, uid: str, made: Input) -> tuple[PromptPlan | None, int]:
        """Keep the cache that a request's adapter gave; the plan, and how much of it is cached.

        The plan's prefix-cache keys are salted like the cache's unless it says otherwise. Raises
        AdapterError for a prompt that does not begin with the tokens of the cache.
        """
        plan, cache = made.plan, made.cache
        if cache is None:
            return plan, 0
        if self.receiver is None:
            self.kept[uid] = cache
            return plan, 0
        if plan is None:
            raise AdapterError("a KV cache came without the prompt that it is of")
        cached = min(cache.header.length, len(plan.token_ids) - 1)
        if cached < 1:
            return plan, 0
        if plan.token_ids[:cached] != cache.token_ids[:cached]:
            raise AdapterError("the prompt does not begin with the tokens of its KV cache")
        self.kept[uid] = cache
        # Blocks of another conditioning must not be found by requests without it.
        return replace(plan, salt=plan.salt or cache.header.salt), cached

    def _check(self, cache: KvSnapshot | None) -> None:
        if cache is None:
            raise PayloadError("The payload came without its KV cache.")
        if self.receiver is not None:
            self.receiver.check(cache)
        elif cache.header.form != "tokens":
            raise PayloadError("The cache is given by blocks; this stage's model needs positions.")

    def _lost(self, ref: Ref) -> Payload:
        self.recomputed += ref.edge in self._edges
        return Payload({}, token_ids=ref.token_ids)
