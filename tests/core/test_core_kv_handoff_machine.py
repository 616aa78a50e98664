"""Hand-offs under any order of events, against what must hold of each whatever happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from antiphon.core.kv_handoff import (
    Action,
    Cancel,
    Criterion,
    EmitFailed,
    EmitReady,
    Free,
    Hold,
    KvHandoff,
    KvState,
    KvTransfer,
    Mark,
    Stop,
)

TOKEN = 2
ORDER = [KvState.IDLE, KvState.MARKED, KvState.ACTIVE, KvState.DONE]


class HandoffMachine(RuleBasedStateMachine):
    """A request that samples, loses its blocks, ends and is aborted at any time, and a worker that
    answers when it likes, also when it was not asked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[type[Action] | str] = Counter()
        self.confirmed = 0  # tokens whose blocks the request has
        self.alive = True
        self.aborted = False
        self.ended_with: int | None = None  # tokens, if it ended by itself
        self.seen = KvState.IDLE

    @initialize(
        criterion=st.sampled_from(["prefill_finished", "special_token", "request_finished"]),
        stop=st.booleans(),
        park=st.booleans(),
        prompt=st.lists(st.sampled_from([0, 1, TOKEN]), min_size=1, max_size=5),
    )
    def begin(self, criterion: Criterion, stop: bool, park: bool, prompt: list[int]) -> None:
        token = TOKEN if criterion == "special_token" else None
        self.transfer = KvTransfer(criterion, token, stop, park)
        self.handoff = KvHandoff(self.transfer, len(prompt))
        self.num_prompt_tokens = len(prompt)
        self.ids = prompt  # all of the request's

    # --- the request --------------------------------------------------------------------------

    @rule(new_ids=st.lists(st.sampled_from([0, 1, TOKEN]), max_size=3), late=st.booleans())
    def sample(self, new_ids: list[int], late: bool) -> None:
        """A step's tokens; `late`: the request was preempted while they were under way."""
        before = len(self.ids)
        if self.alive:
            self.ids = self.ids + new_ids
            if new_ids and not late:
                self.confirmed = len(self.ids) - 1
        self._do("tokens", lambda: self.handoff.tokens(before, new_ids, self.confirmed))
        length = self._length()
        if self.alive and length is not None and self.confirmed >= length:
            assert self.count[Mark] == 1

    @rule()
    def preempt(self) -> None:
        self.confirmed = 0

    @rule(share=st.floats(0, 1))
    def compute_again(self, share: float) -> None:
        self.confirmed = max(self.confirmed, int(share * (len(self.ids) - 1)))

    @rule()
    def end(self) -> None:
        if self.alive and len(self.ids) > self.num_prompt_tokens:
            self._end(kept=True)

    @rule()
    def abort(self) -> None:
        self._end(kept=False)

    @rule()
    def end_again(self) -> None:
        if not self.alive:
            self._end(kept=True)

    def _end(self, *, kept: bool) -> None:
        if self.alive and kept:
            self.ended_with = len(self.ids)
        self.alive, self.aborted = False, self.aborted or not kept
        self._do(
            "end" if kept else "abort",
            lambda: self.handoff.finish(
                kept=kept, num_tokens=len(self.ids), confirmed=self.confirmed
            ),
        )

    # --- the worker ---------------------------------------------------------------------------

    @rule()
    def ship(self) -> None:
        waits = self.count[Mark] == 1 and self.count["ship"] == 0 and not self.aborted
        shipped = self.handoff.ship()
        assert shipped == waits
        self.count["ship"] += shipped

    @rule(answer=st.sampled_from(["ok", "bad", "expire"]))
    def ship_and_answer(self, answer: str) -> None:
        """At once: otherwise few hand-offs come that far."""
        self.ship()
        {"ok": self.ack, "bad": self.refuse, "expire": self.expire}[answer]()

    @rule()
    def ack(self) -> None:
        self._do("ok", self.handoff.ack)

    @rule()
    def refuse(self) -> None:
        self._do("bad", lambda: self.handoff.ack("no room"))

    @rule()
    def expire(self) -> None:
        self._do("expire", lambda: self.handoff.expire("too late"))

    # --- checks -------------------------------------------------------------------------------

    def _length(self) -> int | None:
        """What a snapshot must cover, by the request's whole history."""
        first = self.num_prompt_tokens
        match self.transfer.type:
            case "prefill_finished":
                return first if len(self.ids) > first else None
            case "special_token":
                found = [at for at, token in enumerate(self.ids) if token == TOKEN and at >= first]
                return found[0] if found else None
        return None if self.ended_with is None else self.ended_with - 1

    def _do(self, event: str, call: Callable[[], list[Action]]) -> None:
        over = self.handoff.over
        actions = call()
        assert not (over and actions)
        for action in actions:
            self._check(event, action)
            self.count[type(action)] += 1
            assert self.count[type(action)] == 1  # none ever comes twice

    def _check(self, event: str, action: Action) -> None:
        count = self.count
        match action:
            case Mark(length):
                assert event in ("tokens", "end")
                assert not self.aborted
                assert length == self._length()
                assert 0 < length <= self.confirmed
            case EmitReady():
                assert event == "ok"
                assert count["ship"]
                assert not self.aborted
            case EmitFailed(reason):
                lost = "the request lost its blocks before they could be shipped"
                assert {"bad": "no room", "expire": "too late", "end": lost}[event] == reason
                assert not count[EmitReady]
                assert not self.aborted
            case Stop():
                assert self.alive
                assert self.transfer.stop_after_transfer
                assert count[EmitReady]
            case Hold():
                assert not self.alive
                assert count[Mark]
                assert not count[Free]
            case Free():
                assert count[Mark]
                assert event in ("ok", "bad", "expire") if count["ship"] else event == "abort"
            case Cancel():
                assert self.aborted
                assert not count[EmitReady]

    @invariant()
    def holds_blocks_between_mark_and_free(self) -> None:
        held = self.count[Mark] - self.count[Free]
        assert held == self.handoff.holds
        settled = self.handoff.state in (KvState.DONE, KvState.FAILED)
        assert not (settled and held)
        assert not (self.handoff.over and held)

    @invariant()
    def only_goes_on(self) -> None:
        state = self.handoff.state
        if self.seen in (KvState.DONE, KvState.FAILED):
            assert state is self.seen
        elif state is not KvState.FAILED:
            assert ORDER.index(state) >= ORDER.index(self.seen)
        self.seen = state

    @invariant()
    def says_one_thing_of_its_outcome(self) -> None:
        ready, failed = self.count[EmitReady], self.count[EmitFailed]
        assert ready + failed <= 1
        assert not ready or self.handoff.state is KvState.DONE
        assert not failed or self.handoff.state is KvState.FAILED

    @invariant()
    def parks_only_what_runs_and_will_be_stopped(self) -> None:
        held = self.count[Mark] > self.count[Free]
        transfer = self.transfer
        parks = self.alive and held and transfer.stop_after_transfer and transfer.park
        assert self.handoff.parks == parks

    def teardown(self) -> None:
        """Whatever has happened: a request that ends, and a worker that is waited for no longer."""
        if self.alive:
            self._end(kept=len(self.ids) > self.num_prompt_tokens)
        self.ship()
        self.expire()
        self.holds_blocks_between_mark_and_free()
        assert self.handoff.over
        assert self.count[Free] == self.count[Mark]
        if not self.aborted:
            outcomes = self.count[EmitReady] + self.count[EmitFailed]
            assert outcomes == (self._length() is not None)


TestHandoffMachine = HandoffMachine.TestCase
TestHandoffMachine.settings = settings(max_examples=200, stateful_step_count=20, deadline=None)
