"""What is too large for a stage, and stages that reserve a request's worst case before it runs:
nothing is ever preempted there.

A request that may run is put in line, outside of upstream's queues, and a step lets in those that
fit. What it has been promised is its own until it has ended: a session's as long as it lasts, and
what is handed over until it has left.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from antiphon.core.options import Preemption, StageOptions
from antiphon.core.reservation import Reservations
from antiphon.errors import InputTooLongError
from antiphon.sched.handoffs import Handoffs
from antiphon.sched.parking import Parking
from antiphon.upstream.worst_case import frees_later, worst_case


class ReserveMixin(Scheduler):
    """`reservations` is None in a stage with another policy, which costs nothing then."""

    reserved_tokens: ClassVar[int] = 1  # of the model's length, for what is sampled
    options: StageOptions | None
    parking: Parking
    handoffs: Handoffs
    reservations: Reservations | None

    def _make_reservations(self) -> Reservations | None:
        options = self.options
        if options is None or options.preemption is not Preemption.RESERVE:
            return None
        return Reservations(self.kv_cache_config.num_blocks - 1)  # one is upstream's null block

    def prompt_error(self, num_tokens: int) -> InputTooLongError | None:
        """Why a prompt of this length is refused: it must leave room for what is sampled."""
        limit = self.max_model_len - self.reserved_tokens
        if num_tokens > limit:
            return InputTooLongError(
                f"the prompt has {num_tokens} tokens, the stage takes at most {limit}; "
                f"shorten it or raise max_model_len"
            )
        if self.kv_cache_config.kv_cache_groups:
            blocks = self.kv_cache_config.num_blocks - 1  # one is upstream's null block
            needed = -(-(num_tokens + self.reserved_tokens) // self.block_size)
            if needed > blocks:
                return InputTooLongError(
                    f"a prompt of {num_tokens} tokens needs {needed} cache blocks, the stage has "
                    f"{blocks}; shorten it or raise kv_cache_bytes"
                )
        return None

    def size_error(
        self, num_tokens: int, max_tokens: int, *, session: bool = False
    ) -> InputTooLongError | None:
        """Why a request of this prompt's length is refused: it would not fit an empty cache."""
        if self.reservations is None:
            return None
        blocks = self._worst_case(num_tokens, max_tokens, session=session)
        if self.reservations.fits(blocks):
            return None
        grows = "a session" if session else f"a prompt of {num_tokens} tokens and {max_tokens} more"
        return InputTooLongError(
            f"{grows} may need {blocks} cache blocks, the stage has {self.reservations.total};"
            f" ask for less, or raise kv_cache_bytes"
        )

    def _worst_case(self, num_tokens: int, max_tokens: int, *, session: bool) -> int:
        """Blocks; a session may grow to the model's length."""
        most = self.max_model_len if session else num_tokens + max_tokens
        # What a window has passed may still be held to be handed over.
        return worst_case(self, most, recycled=not self.handoffs.enabled)

    def _has_room(self, request: Request) -> bool:
        """Whether the request's worst case is reserved. If not it is in line from here on."""
        ledger, uid = self.reservations, request.request_id
        if ledger is None or ledger.of(uid) is not None:
            return True
        blocks = self._worst_case(
            request.num_prompt_tokens, request.max_tokens, session=request.resumable
        )
        urgency = request.priority if self.policy == SchedulingPolicy.PRIORITY else 0
        ledger.line_up(uid, blocks, (urgency, request.arrival_time))
        return False

    @property
    def _lets_in(self) -> bool:
        """Whether the first in line fits and there is a seat for it: without one it would only keep
        its blocks from others.
        """
        if self.reservations is None or not self.reservations.opens:
            return False
        if self.pause_state != PauseState.UNPAUSED or frees_later(self):
            return False
        return sum(self.get_request_counts()) < self.max_num_running_reqs

    def _let_in(self) -> None:
        """Put those that fit into upstream's queues."""
        assert self.reservations is not None  # noqa: S101  somebody is in line
        while self._lets_in:
            if self._may_run(self.reservations.first):
                self.parking.release(self.reservations.let_in())
            else:  # it rests again, and lines up anew
                self.reservations.leave(self.reservations.first)

    @abstractmethod
    def _may_run(self, uid: str) -> bool:
        """Whether nothing parks the request."""

    def _vacate(self, uid: str) -> None:
        """The request has ended: all of its blocks are free but those that are handed over."""
        if self.reservations is None:
            return
        if held := self.handoffs.num_held(uid):
            self.reservations.keep(uid, held)
        else:
            self.reservations.leave(uid)

    def _has_left(self, uid: str) -> None:
        """What was handed over is not held any more."""
        if self.reservations is not None and uid not in self.requests:
            self.reservations.leave(uid)

    def _check_reservations(self) -> None:
        """Raise AssertionError if promises and what requests have disagree."""
        if self.reservations is None:
            return
        self.reservations.check_integrity()
        holders, line = self.reservations.holders(), set(self.reservations.waiting())
        if not line <= self.parking.out.keys():
            raise AssertionError("a request in line is in a queue")
        if any(uid not in self.requests and not self.handoffs.num_held(uid) for uid in holders):
            raise AssertionError("a reservation outlived its request")
        for uid in self.requests:
            groups = self.kv_cache_manager.get_blocks(uid).blocks
            blocks = sum(not block.is_null for group in groups for block in group)
            if blocks > (self.reservations.of(uid) or 0):
                raise AssertionError(f"{uid} has more blocks than it was promised")
        queued = [*self.running, *self.waiting, *self.kv_holding_waiting]
        if any(request.request_id not in holders for request in queued):
            raise AssertionError("a request without a reservation is in a queue")
