"""Both ends of an edge that hands nothing but a request's KV cache on, for every model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError
from antiphon.payload.adapters import Input, OutputNeeds, StageContext, StepRows
from antiphon.payload.types import Payload, Scalar


class CacheOutput:
    """Producer's end: the cache is all there is."""

    needs = OutputNeeds()

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> CacheOutput:
        return self  # nothing is kept for a request

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        return []

    def on_rows(self, rows: StepRows) -> list[Payload]:
        return []

    def on_end(self) -> list[Payload]:
        return []


class CacheInput:
    """An ar consumer's end: the request goes on behind the tokens that its cache covers.

    So the consumer samples for itself the token that the producer stopped at; all sampling
    parameters mean what they mean to an undivided request. A cache that is lost is computed again
    from the same prompt.
    """

    sampled = False  # whether the token behind the cache is part of the prompt

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> CacheInput:
        return self  # the payload says it all

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        """The request's prompt and its cache. Raises AdapterError for tokens that do not fit."""
        token_ids, cache = payload.token_ids, payload.cache
        # Of a lost cache the length is not known; every criterion is met by a sampled token, which
        # is the one behind it.
        covered = len(token_ids) - 1 if cache is None else cache.header.length
        if covered < 1:
            raise AdapterError(f"a cache of {covered} tokens is nothing to go on from")
        needed = covered + self.sampled
        if len(token_ids) < needed:
            raise AdapterError(
                f"the cache covers {covered} tokens and came with {len(token_ids)}; to go on from"
                f" it takes {needed}"
            )
        salt = None if cache is None else cache.header.salt
        return Input(PromptPlan(token_ids[:needed], salt=salt), cache=cache)

    def on_end(self) -> Input:
        return Input()  # no cache, no request


class CacheAndTokenInput(CacheInput):
    """The same, behind the token that the producer sampled last: it is part of the prompt."""

    sampled = True
