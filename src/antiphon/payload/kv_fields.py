"""The fields that a KV cache and its token ids cross the wire as.

    kv.0, kv.1, …   per group, of the cache's dtype:
                    blocks [layers, num_blocks, elements of a block], ceil(length / block_size) of
                    them; tokens [layers, 2, length, num_kv_heads, head_size]
    kv.tokens       int32, [length] or [length + 1]

A cache that is lost has token ids alone. What a block's elements are is the engine's business: a
receiver compares `KvGroup.layout` and the size of a block with its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import torch

from antiphon.core.kv_handoff import num_blocks
from antiphon.errors import PayloadError
from antiphon.payload.kv import MAX_LENGTH, KvGroup, KvHeader, KvSnapshot
from antiphon.payload.ref import FieldSpec, Layout

RESERVED = "kv."  # how the names of these fields begin, and of no others
IDS_FIELD = "kv.tokens"


def field_name(group: int) -> str:
    """Of the field that a group's caches cross as."""
    return f"{RESERVED}{group}"


def field_specs(cache: KvSnapshot | None, token_ids: Sequence[int]) -> tuple[FieldSpec, ...]:
    """The fields that these cross as. PayloadError for pieces that do not fit together."""
    groups = () if cache is None else cache.layers
    specs = [_group_spec(index, layers) for index, layers in enumerate(groups)]
    if token_ids:
        specs.append(FieldSpec(IDS_FIELD, Layout.PER_REQUEST, "int32", (len(token_ids),)))
    return tuple(specs)


def check_fields(header: KvHeader | None, fields: Sequence[FieldSpec]) -> None:
    """Raise PayloadError unless, of a payload's fields, the reserved ones are those of `header`.

    Without a header only token ids may be there: those of a cache that is lost.
    """
    there = [spec for spec in fields if spec.name.startswith(RESERVED)]
    names = [spec.name for spec in there]
    if header is None:
        if names not in ([], [IDS_FIELD]):
            raise PayloadError(f"The payload has the reserved fields {names}, but no cache.")
    else:
        header.check()
        wanted = [*map(field_name, range(len(header.groups))), IDS_FIELD]
        if names != wanted:
            raise PayloadError(f"The cache has the fields {names}; it must have {wanted}.")
        for group, spec in zip(header.groups, there, strict=False):  # the last one are the ids
            _check_group(header, group, spec)
    if there:
        _check_ids(None if header is None else header.length, there[-1])


def read_cache(
    header: KvHeader | None, fields: Mapping[str, torch.Tensor]
) -> tuple[KvSnapshot | None, tuple[int, ...]]:
    """What the reserved fields, which have been checked, hold: the cache and its token ids.

    Layers are views. Raises PayloadError for token ids that cannot be.
    """
    token_ids: tuple[int, ...] = ()
    if IDS_FIELD in fields:
        token_ids = tuple(fields[IDS_FIELD].tolist())
        if min(token_ids) < 0:
            raise PayloadError("The payload has a negative token id.")
    if header is None:
        return None, token_ids
    groups = [fields[field_name(index)] for index in range(len(header.groups))]
    layers = tuple(tuple((layer,) for layer in group.unbind(0)) for group in groups)
    return KvSnapshot(header, layers, token_ids), token_ids


def id_bytes(token_ids: Sequence[int]) -> memoryview:
    """Their int32 form, [4 * count] bytes. PayloadError for ids that cannot be."""
    try:
        ids = array("i", token_ids)
    except (TypeError, OverflowError) as error:
        raise PayloadError(f"The payload's token ids are not all int32: {error}.") from error
    if min(ids) < 0:
        raise PayloadError("The payload has a negative token id.")
    return memoryview(ids).cast("B")


def _group_spec(index: int, layers: Sequence[Sequence[torch.Tensor]]) -> FieldSpec:
    kinds = {(piece.dtype, piece.shape[1:]) for pieces in layers for piece in pieces}
    rows = {sum(piece.shape[0] for piece in pieces if piece.ndim) for pieces in layers}
    if len(kinds) != 1 or len(rows) != 1:
        raise PayloadError(f"The layers of the cache's group {index} do not have the same shape.")
    (dtype, rest), (first,) = kinds.pop(), rows
    shape = (len(layers), first, *rest)
    return FieldSpec(
        field_name(index), Layout.PER_REQUEST, str(dtype).removeprefix("torch."), shape
    )


def _check_group(header: KvHeader, group: KvGroup, spec: FieldSpec) -> None:
    if spec.dtype != header.dtype or spec.layout is not Layout.PER_REQUEST:
        raise PayloadError(
            f"Field {spec.name!r} is {spec.layout} {spec.dtype}, its cache is {header.dtype}."
        )
    if header.form == "tokens":
        heads = (group.num_kv_heads, group.head_size)
        wanted: tuple[int | str, ...] = (len(group.layers), 2, header.length, *heads)
        fits = spec.shape == wanted
    else:  # how large a block is, only its engine knows
        blocks = num_blocks(header.length, group.block_size)
        wanted = (len(group.layers), blocks, "elements of a block")
        fits = len(spec.shape) == 3 and spec.shape[:2] == wanted[:2] and spec.shape[2] > 0
    if not fits:
        raise PayloadError(
            f"Field {spec.name!r} has the shape {list(spec.shape)}; its cache has the shape"
            f" [{', '.join(map(str, wanted))}]."
        )


def _check_ids(length: int | None, spec: FieldSpec) -> None:
    if (spec.layout, spec.dtype, len(spec.shape)) != (Layout.PER_REQUEST, "int32", 1):
        raise PayloadError("The payload's token ids are not a row of int32.")
    (count,) = spec.shape
    if length is None and not 0 < count <= MAX_LENGTH + 1:
        raise PayloadError(f"The payload has {count} token ids; 1 to {MAX_LENGTH + 1} may cross.")
    if length is not None and count not in (length, length + 1):
        raise PayloadError(f"The cache has {length} tokens, but the payload has {count} ids.")
