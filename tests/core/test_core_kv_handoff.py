"""KV hand-offs: when they are triggered, what of, and every state times every event."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from antiphon.core.kv_handoff import (
    Action,
    Cancel,
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

PROMPT = 4
TOKEN = 9
PREFILL = KvTransfer("prefill_finished")
SPECIAL = KvTransfer("special_token", token_id=TOKEN)
FINISHED = KvTransfer("request_finished")


# --- what is handed over ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transfer", "num_tokens", "new_ids", "length"),
    [
        (PREFILL, 4, [], None),  # a chunk of the prompt
        (PREFILL, 4, [1], 4),
        (PREFILL, 4, [1, 2, 3], 4),
        (PREFILL, 7, [1], 4),
        (SPECIAL, 4, [], None),
        (SPECIAL, 4, [1, 2], None),
        (SPECIAL, 4, [9], 4),  # the token itself is not part of it
        (SPECIAL, 6, [9], 6),
        (SPECIAL, 6, [1, 2, 9], 8),
        (SPECIAL, 6, [1, 9, 2], 7),  # nor is what follows in the same step
        (SPECIAL, 6, [1, 9, 9], 7),  # the first one counts
        (SPECIAL, 6, [9, 1, 9], 6),
        (FINISHED, 6, [9, 1], None),
    ],
)
def test_length_of_the_snapshot(
    transfer: KvTransfer, num_tokens: int, new_ids: list[int], length: int | None
) -> None:
    handoff = KvHandoff(transfer, PROMPT)
    actions = handoff.tokens(num_tokens, new_ids, confirmed=99)
    assert actions == ([] if length is None else [Mark(length)])
    assert handoff.length == length


@pytest.mark.parametrize("num_tokens", [5, 8])
def test_a_finished_request_hands_over_all_but_its_last_token(num_tokens: int) -> None:
    """The last sampled token was never fed back: it has no keys and values."""
    handoff = KvHandoff(FINISHED, PROMPT)
    handoff.tokens(num_tokens - 1, [9], confirmed=num_tokens - 1)
    actions = handoff.finish(kept=True, num_tokens=num_tokens, confirmed=num_tokens - 1)
    assert actions == [Mark(num_tokens - 1), Hold()]


@pytest.mark.parametrize("transfer", [PREFILL, KvTransfer("special_token", token_id=2)])
def test_a_prompt_whose_only_sampled_token_ends_it_is_handed_over(transfer: KvTransfer) -> None:
    """C88: the end of the request does not swallow the hand-off that its token has triggered."""
    handoff = KvHandoff(transfer, PROMPT)
    assert handoff.tokens(PROMPT, [2], confirmed=PROMPT) == [Mark(PROMPT)]
    assert handoff.finish(kept=True, num_tokens=PROMPT + 1, confirmed=PROMPT) == [Hold()]
    assert handoff.ship()
    assert handoff.ack() == [EmitReady(), Free()]


def test_a_request_that_lost_its_blocks_is_marked_when_it_has_them_again() -> None:
    """C120: with the length of its trigger, however many tokens it has by then."""
    handoff = KvHandoff(SPECIAL, PROMPT)
    assert handoff.tokens(6, [1, 9], confirmed=0) == []
    assert handoff.tokens(8, [], confirmed=6) == []
    assert not handoff.ship()
    assert handoff.tokens(8, [9], confirmed=7) == [Mark(7)]


def test_a_request_that_ends_without_its_blocks_fails_its_transfer() -> None:
    """C120: an empty or freed block list is never shipped."""
    handoff = KvHandoff(PREFILL, PROMPT)
    assert handoff.tokens(4, [1], confirmed=0) == []
    (failed,) = handoff.finish(kept=True, num_tokens=5, confirmed=0)
    assert failed == EmitFailed("the request lost its blocks before they could be shipped")
    assert not handoff.ship()


def test_a_request_of_nothing_computed_is_not_handed_over() -> None:
    handoff = KvHandoff(FINISHED, num_prompt_tokens=1)
    (failed,) = handoff.finish(kept=True, num_tokens=1, confirmed=1)
    assert isinstance(failed, EmitFailed)


@pytest.mark.parametrize("stop", [True, False])
def test_a_request_is_handed_over_once(stop: bool) -> None:
    handoff = KvHandoff(KvTransfer("special_token", TOKEN, stop_after_transfer=stop), PROMPT)
    assert handoff.tokens(4, [9], confirmed=4) == [Mark(4)]
    assert handoff.tokens(5, [9], confirmed=5) == []
    assert handoff.ship()
    assert handoff.tokens(6, [9], confirmed=6) == []
    assert not handoff.ship()
    handoff.ack()
    assert handoff.tokens(7, [9], confirmed=7) == []
    assert handoff.length == 4


# --- every state and every event --------------------------------------------------------------

# Situations: the state ("met": idle, but triggered while blocks were missing), then whether the
# request runs, has ended by itself, or was aborted. Of each event that does anything: the actions
# and the situation after it; all others leave it as it is. "Stop" only with stop_after_transfer.
MOVES: dict[str, dict[str, tuple[str, str]]] = {
    "idle": {
        "met": ("Mark", "marked"),
        "low": ("", "met"),
        "end": ("", "idle ended"),
        "end low": ("", "idle ended"),
        "abort": ("", "idle aborted"),
    },
    "met": {
        "unmet": ("Mark", "marked"),
        "met": ("Mark", "marked"),
        "end": ("Mark Hold", "marked ended"),
        "end low": ("EmitFailed", "failed ended"),
        "abort": ("", "met aborted"),
    },
    "marked": {
        "ship": ("ship", "active"),
        "end": ("Hold", "marked ended"),
        "end low": ("Hold", "marked ended"),
        "abort": ("Cancel Free", "failed aborted"),
    },
    "active": {
        "ok": ("EmitReady Free Stop", "done"),
        "bad": ("EmitFailed Free", "failed"),
        "end": ("Hold", "active ended"),
        "end low": ("Hold", "active ended"),
        "abort": ("Hold", "active aborted"),
        "expire": ("EmitFailed Free", "failed"),
    },
    "done": {
        "end": ("", "done ended"),
        "end low": ("", "done ended"),
        "abort": ("", "done aborted"),
    },
    "failed": {
        "end": ("", "failed ended"),
        "end low": ("", "failed ended"),
        "abort": ("", "failed aborted"),
    },
    "idle ended": {"abort": ("", "idle aborted")},
    "marked ended": {
        "ship": ("ship", "active ended"),
        "abort": ("Cancel Free", "failed aborted"),
    },
    "active ended": {
        "ok": ("EmitReady Free", "done ended"),
        "bad": ("EmitFailed Free", "failed ended"),
        "abort": ("", "active aborted"),
        "expire": ("EmitFailed Free", "failed ended"),
    },
    "done ended": {"abort": ("", "done aborted")},
    "failed ended": {"abort": ("", "failed aborted")},
    "idle aborted": {},
    "met aborted": {},
    "active aborted": {
        "ok": ("Cancel Free", "done aborted"),
        "bad": ("Free", "failed aborted"),
        "expire": ("Free", "failed aborted"),
    },
    "done aborted": {},
    "failed aborted": {},
}
# request_finished: tokens trigger nothing, and the end does.
FINISH_MOVES = {
    "idle": {
        "end": ("Mark Hold", "marked ended"),
        "end low": ("EmitFailed", "failed ended"),
        "abort": ("", "idle aborted"),
    },
    **{
        situation: MOVES[situation]
        for situation in (
            *("marked ended", "active ended", "done ended", "failed ended"),
            *("idle aborted", "active aborted", "done aborted", "failed aborted"),
        )
    },
}
WAYS = {
    "idle": [],
    "met": ["low"],
    "marked": ["met"],
    "active": ["met", "ship"],
    "done": ["met", "ship", "ok"],
    "failed": ["met", "ship", "bad"],
    "idle ended": ["end"],
    "marked ended": ["met", "end"],
    "active ended": ["met", "ship", "end"],
    "done ended": ["met", "ship", "ok", "end"],
    "failed ended": ["met", "ship", "expire", "end"],
    "idle aborted": ["abort"],
    "met aborted": ["low", "abort"],
    "active aborted": ["met", "ship", "abort"],
    "done aborted": ["met", "ship", "abort", "ok"],
    "failed aborted": ["met", "abort"],
}
FINISH_WAYS = {
    "idle": [],
    "marked ended": ["end"],
    "active ended": ["end", "ship"],
    "done ended": ["end", "ship", "ok"],
    "failed ended": ["end", "ship", "bad"],
    "idle aborted": ["abort"],
    "active aborted": ["end", "ship", "abort"],
    "done aborted": ["end", "ship", "abort", "ok"],
    "failed aborted": ["end", "abort"],
}
HELD = {"marked", "active", "marked ended", "active ended", "active aborted"}
OVER = {
    *("idle ended", "done ended", "failed ended"),
    *("idle aborted", "met aborted", "done aborted", "failed aborted"),
}
NOT_TRIGGERED = {"idle", "idle ended", "idle aborted"}
EVENTS = ("unmet", "met", "low", "ship", "ok", "bad", "end", "end low", "abort", "expire")
REASONS = {
    "bad": "no room",
    "expire": "too late",
    "end low": "the request lost its blocks before they could be shipped",
}

# Per criterion: how many tokens the request has, ids that do not trigger it, ids that do, and the
# length of its snapshot.
TRIGGERS: dict[str, tuple[int, list[int], list[int], int]] = {
    "prefill_finished": (4, [], [1], 4),
    "special_token": (6, [1, 2], [1, 9, 2], 7),
    "request_finished": (6, [], [1, 9], 5),
}
NAMES = {
    Mark: "Mark",
    EmitReady: "EmitReady",
    EmitFailed: "EmitFailed",
    Stop: "Stop",
    Hold: "Hold",
    Free: "Free",
    Cancel: "Cancel",
}


def moves_of(criterion: str) -> Mapping[str, Mapping[str, tuple[str, str]]]:
    return FINISH_MOVES if criterion == "request_finished" else MOVES


def new(criterion: str, stop: bool = True, park: bool = True) -> KvHandoff:
    token = TOKEN if criterion == "special_token" else None
    return KvHandoff(KvTransfer(criterion, token, stop, park), PROMPT)  # type: ignore[arg-type]


def at(criterion: str, situation: str, stop: bool = True, park: bool = True) -> KvHandoff:
    handoff = new(criterion, stop, park)
    ways = FINISH_WAYS if criterion == "request_finished" else WAYS
    for event in ways[situation]:
        happen(handoff, event)
    assert situation_of(handoff) == situation
    return handoff


def happen(handoff: KvHandoff, event: str) -> list[Action] | bool:
    """`low`: the blocks hold one token too few; otherwise exactly enough."""
    size, unmet, met, length = TRIGGERS[handoff.transfer.type]
    events: dict[str, Callable[[], list[Action] | bool]] = {
        "unmet": lambda: handoff.tokens(size, unmet, length),
        "met": lambda: handoff.tokens(size, met, length),
        "low": lambda: handoff.tokens(size, met, length - 1),
        "ship": handoff.ship,
        "ok": handoff.ack,
        "bad": lambda: handoff.ack("no room"),
        "end": lambda: handoff.finish(kept=True, num_tokens=size, confirmed=length),
        "end low": lambda: handoff.finish(kept=True, num_tokens=size, confirmed=length - 1),
        "abort": lambda: handoff.finish(kept=False, num_tokens=size, confirmed=length),
        "expire": lambda: handoff.expire("too late"),
    }
    return events[event]()


def situation_of(handoff: KvHandoff) -> str:
    triggered = handoff.state is KvState.IDLE and handoff.length is not None
    end = " aborted" if handoff.aborted else " ended" if handoff.finished else ""
    return ("met" if triggered else handoff.state.value) + end


def told(answer: list[Action] | bool) -> str:
    if isinstance(answer, bool):
        return "ship" if answer else ""
    return " ".join(NAMES[type(action)] for action in answer)


@pytest.mark.parametrize("park", [True, False])
@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize(
    ("criterion", "situation"),
    [(criterion, situation) for criterion in TRIGGERS for situation in moves_of(criterion)],
)
def test_every_event_in_every_state(criterion: str, situation: str, stop: bool, park: bool) -> None:
    for event in EVENTS:
        handoff = at(criterion, situation, stop, park)
        expected, after = moves_of(criterion)[situation].get(event, ("", situation))
        answer = happen(handoff, event)
        assert told(answer) == (expected if stop else expected.removesuffix(" Stop")), event
        assert situation_of(handoff) == after, event
        if isinstance(answer, list):
            lengths = [action.length for action in answer if isinstance(action, Mark)]
            assert lengths in ([], [TRIGGERS[criterion][3]]), event
            reasons = [action.reason for action in answer if isinstance(action, EmitFailed)]
            assert not reasons or reasons == [REASONS[event]]


@pytest.mark.parametrize("criterion", TRIGGERS)
def test_the_table_has_every_situation_that_events_lead_to(criterion: str) -> None:
    found: dict[str, list[str]] = {}
    ways: list[list[str]] = [[]]
    while ways:
        way = ways.pop(0)
        handoff = new(criterion)
        for event in way:
            happen(handoff, event)
        situation = situation_of(handoff)
        if situation not in found:
            found[situation] = way
            ways += [[*way, event] for event in EVENTS]
    assert found.keys() == moves_of(criterion).keys()


@pytest.mark.parametrize("park", [True, False])
@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize(
    ("criterion", "situation"),
    [(criterion, situation) for criterion in TRIGGERS for situation in moves_of(criterion)],
)
def test_what_each_situation_means(criterion: str, situation: str, stop: bool, park: bool) -> None:
    handoff = at(criterion, situation, stop, park)
    assert handoff.holds == (situation in HELD)
    assert handoff.over == (situation in OVER)
    assert handoff.stops == (stop and situation not in NOT_TRIGGERED)
    assert handoff.parks == (stop and park and situation in {"marked", "active"})
