"""What travels on the control path in place of a payload."""

from __future__ import annotations

import enum

import msgspec


class Layout(enum.StrEnum):
    """How a field's first dimension relates to the request; never guessed from shapes."""

    PER_TOKEN = "per_token"  # noqa: S105 - one row per token of the request
    PER_REQUEST = "per_request"  # belongs to the request as a whole
    SHARED = "shared"  # the same for all requests; sent once per request


class FieldSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name, layout, dtype ("int32", "bfloat16", …) and shape of one field."""

    name: str
    layout: Layout
    dtype: str
    shape: tuple[int, ...]


class Ref(msgspec.Struct, frozen=True):
    """One chunk of a payload, as the control path knows it.

    `uid` is the runtime's own id of the *producing* request, `seq` counts the chunks of
    (uid, edge, epoch) from 0. An empty end of stream has `end=True`, no `key` and no fields.
    `token_ids` come with a KV cache that its consumer may compute itself if it is lost: those that
    it covers, and the one sampled after them. With them and without `key` it is lost. A caller's
    prompt for a stage with a prompt adapter comes as token ids alone.
    """

    uid: str
    edge: str
    seq: int
    end: bool
    key: str | None = None
    nbytes: int = 0
    fields: tuple[FieldSpec, ...] = ()
    epoch: int = 0
    token_ids: tuple[int, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether it brings nothing but the end."""
        return self.key is None and not self.token_ids
