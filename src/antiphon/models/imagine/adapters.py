"""The drawing stage's end of its edge: a text's KV cache becomes the request for one picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError, KVTransferError, PayloadError
from antiphon.models.imagine.sizes import DrawSizes
from antiphon.payload.adapters import Input, StageContext
from antiphon.payload.kv import KvHeader
from antiphon.payload.types import Payload, Scalar

COMPANION = "companion"
"""The request's parameter that numbers the pictures of one text, from 0."""

_DTYPES = ("float32", "bfloat16", "float16")


class DrawInput:
    """Checks that a cache is of the kind that the network draws from."""

    def __init__(self, context: StageContext) -> None:
        self._sizes = DrawSizes.read(Path(context.model))

    def open(self, uid: str, params: Mapping[str, Scalar]) -> Drawing:
        """Raises AdapterError for a companion that there is no variant for."""
        companion = params.get(COMPANION, 0)
        if type(companion) is not int or not 0 <= companion < self._sizes.variants:
            raise AdapterError(
                f"{COMPANION} is {companion!r}; pictures of one text are numbered from 0 to"
                f" {self._sizes.variants - 1}"
            )
        return Drawing(self._sizes, companion)


class Drawing:
    """One picture; its prompt is the number of its variant."""

    def __init__(self, sizes: DrawSizes, companion: int) -> None:
        self._sizes = sizes
        self._companion = companion

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        """Raises PayloadError for a cache that the network cannot attend to, KVTransferError
        without one.
        """
        if payload.cache is None:
            raise KVTransferError("The text's cache is lost, and this stage cannot compute it.")
        check_cache(payload.cache.header, self._sizes)
        return Input(PromptPlan((self._companion,)), cache=payload.cache)

    def on_end(self) -> Input:
        return Input()  # no text, no picture


def check_cache(header: KvHeader, sizes: DrawSizes) -> None:
    """Raise PayloadError unless the network that has these sizes can attend to such a cache."""
    if header.form != "tokens":
        raise PayloadError("The cache is given in blocks, which only the same engine can read.")
    if header.dtype not in _DTYPES:
        raise PayloadError(
            f"The cache is {header.dtype}; the network attends to {', '.join(_DTYPES)}."
        )
    groups = {layer: group for group in header.groups for layer in group.layers}
    for layer in sizes.kv_layers:
        if layer not in groups:
            raise PayloadError(
                f"The cache has no layer {layer!r}, which the network attends to; it has"
                f" {len(groups)}, from {min(groups)!r} on."
            )
        group = groups[layer]
        for field, wanted in (("num_kv_heads", sizes.kv_heads), ("head_size", sizes.head_size)):
            if (found := getattr(group, field)) != wanted:
                raise PayloadError(
                    f"The cache's {field} is {found} in layer {layer!r}; the network attends to"
                    f" {wanted}."
                )
