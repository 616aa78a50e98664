"""A kv edge between two real stages on which everything goes wrong that can.

Caches cannot be stored for a while or for ever, are lost or damaged, come late or twice or never,
are kept too long, and either end is aborted or put to sleep at any moment. Whatever happens: each
request ends once, those that succeed say what transformers says, nothing is left (I1-I4).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from antiphon.errors import ConnectorError, KVTransferError, PayloadError, StageInputTimeout
from antiphon.testing.faults import Item
from engine_pool import EnginePool
from kv_pair import ACK, LEASE, PATIENCE, Pair, faulty_consumer, faulty_producer
from tiny import BLOCK, Driven, reference
from tiny_caches import greedy, prompt_of
from tiny_clock import CLOCK

TOKENS = 6
STEPS = 12  # of each stage, in which a request that is stored late gets to its second word
LENGTHS = (BLOCK + 5, 3, 2 * BLOCK)  # of the prompts of q0, q1, q2
UIDS = tuple(f"q{index}" for index in range(len(LENGTHS)))
PROMPTS = {uid: prompt_of(70, length) for uid, length in zip(UIDS, LENGTHS, strict=True)}
FAIL, RECOMPUTE = "fail", "recompute"
POLICY = pytest.mark.parametrize("policy", [FAIL, RECOMPUTE])
SHORT = pytest.mark.parametrize("short", [False, True], ids=["cut", "complete"])


@pytest.fixture(scope="module", params=[False, True], ids=["sync", "async"])
def overlap(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def producers(engines: EnginePool, model: str, overlap: bool) -> dict[str, Driven]:
    return {
        policy: engines.stage(faulty_producer(f"hands-{policy}", model, policy, overlap=overlap))
        for policy in (FAIL, RECOMPUTE)
    }


@pytest.fixture(scope="module")
def consumer(engines: EnginePool, model: str, overlap: bool) -> Driven:
    return engines.stage(faulty_consumer("takes", model, overlap=overlap))


@pytest.fixture(scope="module")
def answers(model: str) -> dict[str, list[int]]:
    judge: LlamaForCausalLM = reference(model)
    return {uid: greedy(judge, prompt, TOKENS) for uid, prompt in PROMPTS.items()}


@pytest.fixture
def pair(
    producers: dict[str, Driven], consumer: Driven, policy: str, answers: dict[str, list[int]]
) -> Iterator[Pair]:
    """Whatever a test did to it, nothing is left."""
    pair = Pair(producers[policy], consumer)
    yield pair
    pair.settle()
    checked(pair, answers)


def checked(pair: Pair, answers: dict[str, list[int]]) -> None:
    for uid in pair.uids:
        pair.check(uid, answers[uid])
    pair.check_rest()


def start(pair: Pair, *uids: str, short: bool = False) -> None:
    for uid in uids or UIDS:
        pair.start(uid, PROMPTS[uid], TOKENS, short=short)


def failed_with(pair: Pair, *codes: str) -> bool:
    """q0 alone has ended badly: once, and so."""
    return pair.over == {"q0"} and pair.errors == {"q0": set(codes)}


# --- caches that cannot be stored -------------------------------------------------------------


@POLICY
@SHORT
def test_a_put_that_fails_for_a_while_is_retried(pair: Pair, policy: str, short: bool) -> None:
    pair.faults.fail_puts(3, "q0/")
    start(pair, short=short)
    pair.run()
    assert not pair.over
    assert pair.consumer.external_tokens("q0'") == LENGTHS[0]
    assert (pair.statistics().ready, pair.statistics().failed) == (3, 0)


@POLICY
@SHORT
def test_a_put_that_fails_for_ever(pair: Pair, policy: str, short: bool) -> None:
    """A typed error at once, or a consumer that computes the cache itself; never a wait."""
    pair.faults.fail_puts(None, "q0/")
    start(pair, short=short)
    began = CLOCK()
    pair.run()
    assert CLOCK() - began < ACK
    if policy == FAIL:
        assert failed_with(pair, KVTransferError.code)
        (error,) = [o.error for o in pair.producer.outputs("q0") if o.error is not None]
        assert "stage 'hands-fail'" in error.message
        assert "5 attempts" in error.message
    else:
        assert not pair.over
        assert pair.consumer.external_tokens("q0'") == 0
    assert (pair.statistics().ready, pair.statistics().failed) == (2, 1)


@POLICY
@SHORT
def test_an_answer_that_comes_behind_its_deadline(pair: Pair, policy: str, short: bool) -> None:
    """Its cache, stored when nobody waited for it any more, is freed."""
    pair.faults.fail_puts(1, "q0/")
    start(pair, short=short)
    while pair.statistics().active != 1:
        pair.step(pair.producer)
    CLOCK.advance(ACK + 1)
    pair.run()
    if policy == FAIL:
        assert failed_with(pair, KVTransferError.code)
    else:
        assert not pair.over
        assert pair.consumer.external_tokens("q0'") == 0
    seen = pair.statistics()
    assert (seen.ready, seen.failed, seen.late_acks) == (2, 1, 1)


# --- caches that are not what they were, or not there -----------------------------------------


@POLICY
@pytest.mark.parametrize("fault", ["lose", "corrupt", "truncate"])
def test_a_payload_that_is_not_what_was_stored(pair: Pair, policy: str, fault: str) -> None:
    order: Callable[[str], None] = getattr(pair.faults, fault)
    order("q0/")
    start(pair)
    pair.run()
    if policy == FAIL:
        assert failed_with(pair, (ConnectorError if fault == "lose" else PayloadError).code)
    else:
        assert not pair.over
        assert pair.consumer.external_tokens("q0'") == 0
    assert pair.consumer.external_tokens("q1'") == LENGTHS[1]


@POLICY
def test_a_cache_that_is_not_taken_in_time(pair: Pair, policy: str) -> None:
    """Its lease expires: the payload is gone, and who comes for it learns that at once."""
    start(pair, "q0")
    pair.run_to_mail()
    pair.producer.run()
    assert (pair.statistics().leased, pair.producer.inspect().connector_entries) == (1, 1)
    CLOCK.advance(LEASE - 1)
    pair.producer.run()
    assert pair.statistics().leased == 1
    CLOCK.advance(2)
    pair.producer.run()
    seen = pair.statistics()
    assert (seen.leased, seen.leases_expired) == (0, 1)
    assert pair.producer.inspect().connector_entries == 0
    began = CLOCK()
    pair.run()
    assert began == CLOCK()
    if policy == FAIL:
        assert failed_with(pair, ConnectorError.code)
    else:
        assert not pair.over


@POLICY
def test_a_ref_that_never_comes(pair: Pair, policy: str) -> None:
    """C12: the consumer's patience ends, and what was stored for it is freed."""
    start(pair)
    while len(pair.mail.pending) < len(UIDS):
        pair.step(pair.producer)
    pair.mail.lose(next(i for i, (uid, _) in enumerate(pair.mail.pending) if uid == "q0'"))
    began = CLOCK()
    pair.run()
    assert CLOCK() - began == pytest.approx(PATIENCE)
    assert failed_with(pair, StageInputTimeout.code)
    (error,) = [o.error for o in pair.consumer.outputs("q0'") if o.error is not None]
    assert "stage 'takes'" in error.message
    assert "'cache'" in error.message


@POLICY
def test_refs_that_come_twice(pair: Pair, policy: str) -> None:
    """At once, while the consumer decodes, and when it has ended: the first one counts."""
    start(pair)
    while len(pair.mail.pending) < len(UIDS):
        pair.step(pair.producer)
    items: list[Item] = [item for item in pair.mail.drain() for _ in range(2)]
    for item in items:
        pair.deliver(item)
    for _ in range(2 * TOKENS):
        pair.round()
        for item in items:
            pair.deliver(item)
    assert all(pair.consumer.endings(f"{uid}'") for uid in UIDS)
    pair.run()
    assert not pair.over
    assert [pair.consumer.external_tokens(f"{uid}'") for uid in UIDS] == list(LENGTHS)


@POLICY
def test_a_ref_that_comes_when_its_consumer_has_given_up(pair: Pair, policy: str) -> None:
    start(pair, "q0")
    pair.run_to_mail()
    item = pair.mail.deliver()
    CLOCK.advance(PATIENCE + 1)
    pair.run()
    pair.deliver(item)
    pair.run()
    assert failed_with(pair, StageInputTimeout.code)


# --- aborts -----------------------------------------------------------------------------------


def begin(pair: Pair) -> None:
    """Three requests, of which q0 hands over a cache that cannot be stored at first."""
    pair.faults.fail_puts(2, "q0/")
    start(pair)


def go_on(pair: Pair, rounds: int) -> None:
    for _ in range(rounds):
        pair.round()
        CLOCK.advance(0.1)


def moment(pair: Pair) -> str:
    """How far the life of q0 has gone."""
    seen = pair.statistics()
    if pair.consumer.tokens("q0'"):
        return "decoding"
    if any(ref.uid == "q0" for ref in pair.producer.refs()):
        return "ready"
    if seen.shipped:
        assert seen.active
        return "active"
    return "marked" if seen.marked else "before"


@POLICY
def test_the_steps_of_the_loops_meet_every_moment(pair: Pair, policy: str) -> None:
    """The control of the loops below."""
    begin(pair)
    met = set()
    for _ in range(STEPS):
        met.add(moment(pair))
        go_on(pair, 1)
    assert met >= {"before", "marked", "active", "decoding"}
    assert pair.statistics().shipped == len(UIDS)


WHO = {"producer first": 0, "consumer first": 1, "both": None}


@POLICY
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("half", [0, 1])
def test_aborts_at_every_step(
    *,
    producers: dict[str, Driven],
    consumer: Driven,
    policy: str,
    who: str,
    half: int,
    answers: dict[str, list[int]],
) -> None:
    """C115: of one in a batch of three; the stage that is told second learns it two rounds later.

    A consumer that is told second may find first that its cache is gone.
    """
    for number in range(half, STEPS, 2):
        pair = Pair(producers[policy], consumer)
        begin(pair)
        go_on(pair, number)
        first = WHO[who]
        if first is None:
            pair.abort("q0")
        else:
            pair.abort("q0", [pair.stages[first]])
            go_on(pair, 2)
            pair.abort("q0", [pair.stages[1 - first]])
        pair.settle()
        assert pair.over == {"q0"}
        gone = {"q0": {ConnectorError.code}}
        assert not pair.errors or (first == 0 and policy == FAIL and pair.errors == gone)
        checked(pair, answers)


# --- sleep ------------------------------------------------------------------------------------


@POLICY
@pytest.mark.parametrize("sleeper", [0, 1], ids=["producer", "consumer"])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "when it sleeps"])
def test_sleep_at_every_step(
    *,
    producers: dict[str, Driven],
    consumer: Driven,
    policy: str,
    sleeper: int,
    late: bool,
    answers: dict[str, list[int]],
) -> None:
    """A stage may fall asleep and wake at any moment: no cache is lost by it."""
    for number in range(8):
        pair = Pair(producers[policy], consumer)
        begin(pair)
        go_on(pair, number)
        pair.sleep(pair.stages[sleeper])
        go_on(pair, 16 if late else 1)
        pair.wake(pair.stages[sleeper])
        pair.run()
        assert not pair.over
        assert pair.statistics().ready == len(UIDS)
        checked(pair, answers)


@POLICY
def test_a_lease_ends_while_its_stage_sleeps(pair: Pair, policy: str) -> None:
    start(pair, "q0")
    pair.run_to_mail()
    pair.sleep(pair.producer)
    pair.producer.run()
    CLOCK.advance(LEASE + 1)
    pair.producer.run()
    assert pair.statistics().leases_expired == 1
    assert pair.producer.inspect().connector_entries == 0
    pair.settle()
    assert pair.errors == ({"q0": {ConnectorError.code}} if policy == FAIL else {})


# --- anything ---------------------------------------------------------------------------------

ACTIONS = (
    ["produce"] * 8
    + ["consume"] * 8
    + ["deliver"] * 6
    + ["repeat", "lose ref", "lose", "corrupt", "truncate", "put fails", "put fails for ever"]
    + ["heal", "abort", "abort one end", "sleep", "wake", "wake", "wait", "wait long"]
)


@dataclass
class Story:
    """What happens to a pair, and which of its requests it can hurt."""

    pair: Pair
    policy: str
    hurt: set[str] = field(default_factory=set)
    puts: int = 0
    waited_s: float = 0.0

    def act(self, action: str, number: int) -> None:
        pair, uid, stage = self.pair, UIDS[number % len(UIDS)], self.pair.stages[number % 2]
        match action:
            case "produce":
                pair.step(pair.producer)
            case "consume":
                pair.step(pair.consumer)
            case "deliver" | "repeat" | "lose ref" if pending := pair.mail.pending:
                self._mail(action, number % len(pending))
            case "abort":
                pair.abort(uid)
            case "abort one end":
                pair.abort(uid, [stage])
            case "sleep":
                pair.sleep(stage)
            case "wake":
                pair.wake(stage)
            case "wait":
                self._wait(0.1 * number)
            case "wait long":
                self._wait((ACK, LEASE, PATIENCE)[number % 3] + 1)
            case _:
                self._fault(action, uid, number)

    def _mail(self, action: str, index: int) -> None:
        pair, item = self.pair, self.pair.mail.pending[index]
        if action == "repeat":
            pair.deliver(item)
            return
        pair.mail.lose(index)
        if action == "deliver":
            pair.deliver(item)
        else:
            self.hurt.add(item[1].uid)

    def _fault(self, action: str, uid: str, number: int) -> None:
        faults = self.pair.faults
        match action:
            case "lose" | "corrupt" | "truncate":
                getattr(faults, action)(f"{uid}/")
                self._hurts(uid)
            case "put fails":
                faults.fail_puts(1 + number % 3)
                self.puts += 1 + number % 3
            case "put fails for ever":
                faults.fail_puts(None, f"{uid}/")
                self._hurts(uid)
            case "heal":
                faults.heal()

    def _hurts(self, *uids: str) -> None:
        """What a consumer can make good hurts nobody."""
        if self.policy == FAIL:
            self.hurt.update(uids)

    def _wait(self, seconds: float) -> None:
        CLOCK.advance(seconds)
        self.waited_s += seconds

    def end(self, aborted: set[str]) -> None:
        """Judge: no request has failed that nothing has happened to."""
        if self.puts > 4 or self.waited_s > ACK:  # a put is tried five times
            self._hurts(*UIDS)
        if self.waited_s > PATIENCE:
            self.hurt.update(UIDS)
        assert self.pair.errors.keys() <= self.hurt
        assert self.pair.over == aborted | self.pair.errors.keys()
        codes = {code for found in self.pair.errors.values() for code in found}
        known = {StageInputTimeout.code}
        if self.policy == FAIL:
            known |= {KVTransferError.code, ConnectorError.code, PayloadError.code}
        assert codes <= known


STORIES = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5)), max_size=60)
POLICIES = st.sampled_from([FAIL, RECOMPUTE])
SETTINGS = functools.partial(
    settings,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def run_story(
    pair: Pair,
    policy: str,
    story: list[tuple[str, int]],
    shorts: int,
    answers: dict[str, list[int]],
) -> None:
    for index, uid in enumerate(UIDS):
        start(pair, uid, short=bool(shorts >> index & 1))
    told = Story(pair, policy)
    aborted = set()
    for action, number in story:
        told.act(action, number)
        if action.startswith("abort"):
            aborted.add(UIDS[number % len(UIDS)])
    for uid in aborted:  # an orchestrator does not forget an end
        pair.abort(uid)
    pair.settle()
    told.end(aborted)
    checked(pair, answers)


@SETTINGS(max_examples=15)
@given(story=STORIES, policy=POLICIES, shorts=st.integers(0, 7))
def test_whatever_happens_each_request_ends_once(
    *,
    producers: dict[str, Driven],
    consumer: Driven,
    answers: dict[str, list[int]],
    story: list[tuple[str, int]],
    policy: str,
    shorts: int,
) -> None:
    """C107, C115: no request hangs, nobody else is hurt, nothing stays."""
    run_story(Pair(producers[policy], consumer), policy, story, shorts, answers)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@SETTINGS(max_examples=300)
@given(story=STORIES, policy=POLICIES, shorts=st.integers(0, 7))
def test_whatever_happens_at_length(
    *,
    producers: dict[str, Driven],
    consumer: Driven,
    answers: dict[str, list[int]],
    story: list[tuple[str, int]],
    policy: str,
    shorts: int,
) -> None:
    run_story(Pair(producers[policy], consumer), policy, story, shorts, answers)
