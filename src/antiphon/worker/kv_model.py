"""What a generation model is given of the caches that its requests attend to."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from antiphon.payload.kv import KeysValues, KvMetadata, KvSnapshot, keys_and_values
from antiphon.worker.capabilities import PastKeyValues


class GivenCaches:
    """Caches of the requests of a generation stage, on its model's device.

    `cache_of` says what a request attends to, None for nothing.
    """

    def __init__(self, device: torch.device, cache_of: Callable[[str], KvSnapshot | None]) -> None:
        self._device = device
        self._cache_of = cache_of
        # By uid; moved once, for all forwards and for all companions that share a cache.
        self._ready: dict[str, tuple[KvSnapshot, list[KeysValues]]] = {}

    def arguments(self, uids: Sequence[str], offsets: npt.NDArray[np.integer]) -> dict[str, Any]:
        """What `forward` is given for this batch; `offsets` are where its requests' rows begin."""
        past: PastKeyValues = []
        metadata: list[KvMetadata | None] = []
        for index, uid in enumerate(uids):
            if (cache := self._cache_of(uid)) is None:
                past.append(None)
                metadata.append(None)
                continue
            header = cache.header
            past.append(self._moved(uid, cache))
            metadata.append(
                KvMetadata(
                    rows=(int(offsets[index]), int(offsets[index + 1])),
                    length=header.length,
                    next_position=header.first_position + header.length,
                    layers=tuple(name for group in header.groups for name in group.layers),
                    token_ids=cache.token_ids,
                )
            )
        return {"past_key_values": past, "kv_metadata": metadata}

    def drop(self, uid: str) -> None:
        """Forget a request; unknown ones are ignored."""
        self._ready.pop(uid, None)

    def check_integrity(self, uids: Container[str]) -> None:
        """Raise AssertionError if a cache is kept for a request that is not among `uids`, or is not
        the request's any more.
        """
        for uid, (cache, _) in self._ready.items():
            if uid not in uids or self._cache_of(uid) is not cache:
                raise AssertionError("a cache is kept on the device for a request that is gone")

    def _moved(self, uid: str, cache: KvSnapshot) -> list[KeysValues]:
        if (ready := self._ready.get(uid)) is None:
            shared = (entry for entry in self._ready.values() if entry[0] is cache)
            ready = self._ready[uid] = next(shared, None) or (cache, self._move(cache))
        return ready[1]

    def _move(self, cache: KvSnapshot) -> list[KeysValues]:
        return [
            (keys.to(self._device), values.to(self._device))
            for keys, values in keys_and_values(cache)
        ]
