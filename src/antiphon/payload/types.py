"""Payloads as the workers see them: named tensors with an explicit layout, and small metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from antiphon.payload.kv import KvSnapshot
from antiphon.payload.kv_fields import field_specs
from antiphon.payload.ref import FieldSpec, Layout

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Field:
    """A tensor and how its first dimension relates to the request."""

    layout: Layout
    tensor: torch.Tensor

    def spec(self, name: str) -> FieldSpec:
        dtype = str(self.tensor.dtype).removeprefix("torch.")
        return FieldSpec(name, self.layout, dtype, tuple(self.tensor.shape))


def per_token(tensor: torch.Tensor) -> Field:
    """A field with one row per token: [num_tokens, ...]."""
    return Field(Layout.PER_TOKEN, tensor)


def per_request(tensor: torch.Tensor) -> Field:
    """A field that belongs to the request as a whole."""
    return Field(Layout.PER_REQUEST, tensor)


def shared(tensor: torch.Tensor) -> Field:
    """A field that is the same for all requests."""
    return Field(Layout.SHARED, tensor)


@dataclass(frozen=True, slots=True)
class Payload:
    """What one chunk holds.

    Tensors are owned by the payload: they never alias a buffer that a step reuses. On a `kv` edge
    `token_ids` are those that the request's cache covers, and the one sampled after them if any:
    the cache's own. Without `cache` it is lost. Names that begin with "kv." are reserved.
    """

    fields: Mapping[str, Field]
    meta: Mapping[str, Scalar] = field(default_factory=dict)
    cache: KvSnapshot | None = None
    token_ids: tuple[int, ...] = ()

    def specs(self) -> tuple[FieldSpec, ...]:
        """All that crosses, in its order: `fields`, then what cache and token ids cross as.

        Raises PayloadError for a cache whose pieces do not fit together.
        """
        own = (f.spec(name) for name, f in self.fields.items())
        return (*own, *field_specs(self.cache, self.token_ids))
