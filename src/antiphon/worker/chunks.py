"""The chunks that a step's fetches name, each taken out of the connector and decoded once.

Companions share a hand-off: one ref is then fetched for several requests of the same step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from antiphon.connector.base import Connector
from antiphon.core.tickets import Fetch
from antiphon.errors import AntiphonError, ConnectorError, PayloadError, without_frames
from antiphon.payload import wire
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload


class Chunks:
    """Of one step; what several requests share is kept as long as this object is."""

    def __init__(self, connector: Connector, fetches: Iterable[Fetch]) -> None:
        self._connector = connector
        self._wanted = Counter(fetch.ref.key for fetch in fetches)
        self._shared: dict[str, Payload | AntiphonError] = {}

    def take(self, ref: Ref, limits: wire.Limits) -> Payload:
        """The payload of a ref with a key. Raises ConnectorError or PayloadError."""
        assert ref.key is not None  # noqa: S101  the caller looked
        made = self._shared.get(ref.key)
        if made is None:
            made = self._decoded(ref.key, ref, limits)
            if self._wanted[ref.key] > 1:
                self._shared[ref.key] = made
        if isinstance(made, AntiphonError):
            raise type(made)(str(made))  # each request one of its own
        return made

    def skip(self, ref: Ref) -> None:
        """One of the ref's requests does not want it; without any other it is thrown away."""
        if ref.key is None or ref.key in self._shared:
            return
        self._wanted[ref.key] -= 1
        if not self._wanted[ref.key]:
            self._connector.delete([ref.key])

    def _decoded(self, key: str, ref: Ref, limits: wire.Limits) -> Payload | AntiphonError:
        try:
            return wire.decode(self._connector.take(key), limits=limits, expect=ref.fields)
        except (ConnectorError, PayloadError) as error:
            return without_frames(error)
