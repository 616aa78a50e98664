"""Frames of codes: made of each sampled token by the model's decode hook, kept for its requests.

A frame is addressed by the index of its output token, never by a counter: decoding, a chunked
replay and a resume after preemption read the same place.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch

from antiphon.worker.capabilities import DecodeHook
from antiphon.worker.device import DeviceOps
from antiphon.worker.frame_sampling import FrameSampling


class FrameTable:
    """Frames by slot and output index, on the model's device. Slots are those of live requests.

    Preempted requests keep theirs, so there can be more than run at a time: it grows.
    """

    def __init__(self, slots: int, length: int, frame_size: int, ops: DeviceOps) -> None:
        # Made with the first request: what is allocated while a model is loaded belongs to its
        # weights, and a sleeping stage may drop those.
        self._frames = torch.empty(0, length, frame_size, dtype=torch.int32, device=ops.device)
        self._at_least = slots
        self._free: list[int] = []
        self._slots: dict[str, int] = {}
        self.ops = ops

    def add(self, uid: str) -> None:
        """Give a request a slot."""
        if not self._free:
            count = len(self._frames)
            more = max(count, self._at_least)
            self._free = list(reversed(range(count, count + more)))
            room = self._frames.new_zeros(more, *self._frames.shape[1:])
            self._frames = torch.cat([self._frames, room])
        self._slots[uid] = self._free.pop()

    def drop(self, uid: str) -> None:
        """Take the request's slot back; unknown ones are ignored."""
        if (slot := self._slots.pop(uid, None)) is not None:
            self._free.append(slot)

    def __contains__(self, uid: str) -> bool:
        return uid in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    def write(self, places: Sequence[tuple[str, int]], frames: torch.Tensor) -> None:
        """Frames [n, frame_size] of these (request, output index)."""
        self._frames[self._at(places)] = frames.to(self._frames.dtype)

    def read(self, places: Sequence[tuple[str, int]]) -> torch.Tensor:
        """The frames of these (request, output index), int64 [n, frame_size]."""
        return self._frames[self._at(places)].long()

    def _at(self, places: Sequence[tuple[str, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        slots = torch.tensor([self._slots[uid] for uid, _ in places])
        indices = torch.tensor([index for _, index in places])
        return self.ops.to_device(slots), self.ops.to_device(indices)

    def check_integrity(self) -> None:
        """Raise AssertionError if a slot is lost or given out twice."""
        if sorted([*self._free, *self._slots.values()]) != list(range(len(self._frames))):
            raise AssertionError("slots of frames are lost or given out twice")


class Frames:
    """What the runner asks of a model with a decode hook."""

    def __init__(self, hook: DecodeHook, table: FrameTable, frame_size: int) -> None:
        self._hook = hook
        self._table = table
        self._frame_size = frame_size
        self._sampling: dict[str, FrameSampling] = {}

    def add(self, uid: str, sampling: FrameSampling) -> None:
        """A request begins; one that is known goes on as it is, with this sampling."""
        if uid not in self._table:
            self._table.add(uid)
        self._sampling[uid] = sampling

    def drop(self, uid: str) -> None:
        """Forget a request; unknown ones are ignored."""
        self._table.drop(uid)
        self._sampling.pop(uid, None)

    def make(
        self, places: Sequence[tuple[str, int]], hidden: torch.Tensor, token_ids: torch.Tensor
    ) -> None:
        """Make and keep the frames of tokens that have just been sampled.

        `places` are their (request, output index), `hidden` [n, hidden] what they were sampled
        from, `token_ids` int64 [n].
        """
        if not places:
            return
        sampling = [self._sampling[uid] for uid, _ in places]
        draw = FrameSampling.draw(
            sampling, [i for _, i in places], self._frame_size, self._table.ops
        )
        self._table.write(places, self._hook.predict_frames(hidden, token_ids, draw))

    def embed(self, places: Sequence[tuple[str, int]]) -> torch.Tensor:
        """Input embeddings [n, hidden] of these output tokens."""
        return self._hook.embed_frames(self._table.read(places))

    def rows(self, spans: Sequence[tuple[str, int, int]], num_tokens: int) -> torch.Tensor:
        """Frames by token row of the step, int32 [num_tokens, frame_size]; -1 without one.

        `spans` are (request, token row, output index) of each row whose token is known.
        """
        shape = (num_tokens, self._frame_size)
        ops = self._table.ops
        made = torch.full(shape, -1, dtype=torch.int32, device=ops.device)
        if spans:
            rows = ops.to_device(torch.tensor([row for _, row, _ in spans]))
            made[rows] = self._table.read([(uid, index) for uid, _, index in spans]).int()
        return made

    @property
    def uids(self) -> Set[str]:
        """The requests that have a slot."""
        return self._sampling.keys()

    def check_integrity(self) -> None:
        """Raise AssertionError if slots and requests disagree."""
        self._table.check_integrity()
        if len(self._sampling) != len(self._table):
            raise AssertionError("frames are kept for a request that is not known")
