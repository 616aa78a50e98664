"""One request's KV hand-off, as the scheduler keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.v1.request import Request

from antiphon.core.kv_handoff import KvHandoff
from antiphon.core.tickets import KvShip
from antiphon.errors import KVTransferError
from antiphon.payload.ref import Ref
from antiphon.sched.block_holds import Blocks, block_ids


@dataclass(frozen=True, slots=True)
class Ending:
    """A request that is to end now; without an error as if it had stopped by itself."""

    uid: str
    error: KVTransferError | None = None


@dataclass(slots=True)
class Record:
    """The hand-off, and what is held for it."""

    uid: str
    epoch: int
    handoff: KvHandoff
    token_ids: tuple[int, ...] = ()  # of the snapshot, and the one sampled after it if any
    salt: str | None = None
    blocks: Blocks = ()
    generation: int = 0  # of its order, once shipped
    marked_s: float = 0.0  # clock value
    passed_over: bool = False  # parked until it ends

    def cut(self, request: Request, new_ids: list[int]) -> bool:
        """Drop, in place, what one step has sampled behind a trigger that ends the request; whether
        there was something. Such tokens had been drafted: they count as rejected drafts.
        """
        length = self.handoff.wanted(request.num_tokens, new_ids)
        if length is None or not self.handoff.transfer.stop_after_transfer:
            return False
        kept = length - request.num_tokens + 1
        dropped = len(new_ids) - kept
        del new_ids[kept:]
        if dropped and request.num_computed_tokens:  # it has not been preempted meanwhile
            request.num_computed_tokens -= dropped
            if request.num_output_placeholders:
                request.num_output_placeholders -= dropped
        return dropped > 0

    def note(self, request: Request) -> None:
        """Keep what the snapshot is told by, for when the request is gone."""
        length = self.handoff.length
        assert length is not None  # noqa: S101  its criterion has been met
        self.token_ids = tuple(request.all_token_ids[: length + 1])
        self.salt = request.cache_salt

    def order(self, edge: str, generation: int) -> KvShip:
        """What the worker is to do."""
        self.generation = generation
        length = self.handoff.length
        assert length is not None  # noqa: S101  it was marked with one
        return KvShip(
            uid=self.uid,
            edge=edge,
            epoch=self.epoch,
            generation=generation,
            length=length,
            token_ids=self.token_ids,
            block_ids=block_ids(self.blocks),
            salt=self.salt,
        )

    def lost(self, edge: str) -> Ref:
        """Tells the consumer that there is no cache, and what to compute one of."""
        return Ref(self.uid, edge, 0, True, epoch=self.epoch, token_ids=self.token_ids)

    def check_integrity(self) -> None:
        """Raise AssertionError if what is held does not fit the hand-off's state."""
        if self.handoff.holds != any(self.blocks):
            raise AssertionError(f"what is held for {self.uid} does not fit {self.handoff.state}")
        if self.handoff.over:
            raise AssertionError(f"the hand-off of {self.uid} is over and kept")


def confirmed(request: Request) -> int:
    """Tokens whose keys and values are in the request's blocks for certain."""
    return request.num_computed_tokens - request.num_output_placeholders
