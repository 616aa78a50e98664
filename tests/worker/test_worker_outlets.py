"""Numbers, ends and retries of the chunks that leave a stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.retry import RetryPolicy
from antiphon.core.tickets import Accepted, Ended, StageNews
from antiphon.payload.ref import Ref
from worker_bench import Bench, errors, marks

WAITS = [0.05, 0.1, 0.2, 0.4]  # s, of the default policy


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Every edge is a stream."""
    made = Bench(stream=True)
    yield made
    made.close()


def retry(bench: Bench) -> StageNews:
    return bench.work(retry=True)


# --- numbers and ends -----------------------------------------------------------------------------


def test_one_step_may_bring_several_chunks(bench: Bench) -> None:
    """C17: one for each token, in order."""
    bench.open("a", "parts", each=True)
    refs = bench.accept("a", 4, 1, 2, 3).refs
    assert marks(refs) == [(n, False, False) for n in range(3)]
    assert bench.ids(refs) == [1, 2, 3]


def test_the_last_of_several_chunks_at_the_end_ends(bench: Bench) -> None:
    bench.open("a", "parts", rest=3)
    bench.accept("a", 2, 7)
    refs = bench.end("a", 2).refs
    assert marks(refs) == [(1, False, False), (2, False, False), (3, True, False)]


def test_each_edge_counts_for_itself(bench: Bench) -> None:
    bench.open("a", "parts", "ids")
    refs = bench.accept("a", 2, 1).refs + bench.accept("a", 3, 2).refs + bench.end("a", 3).refs
    assert [(ref.edge, ref.seq, ref.end) for ref in refs] == [
        ("parts", 0, False),
        ("parts", 1, False),
        ("parts", 2, True),
        ("ids", 0, True),
    ]


@pytest.mark.parametrize("rest", [0, 2])
def test_a_full_edge_holds_everything_back_until_the_end(rest: int) -> None:
    """C22: what a stream carries chunk by chunk, a full edge carries at the end."""
    found = []
    for stream in (True, False):
        bench = Bench(stream=stream)
        bench.open("a", "parts", rest=rest)
        early = bench.accept("a", 3, 1, 2).refs + bench.accept("a", 4, 3).refs
        late = bench.end("a", 4).refs
        assert bool(early) is stream
        assert [ref.end for ref in late] == [False] * (len(late) - 1) + [True]
        found.append(bench.ids([*early, *late]))
        assert bench.entries() == 0
        bench.close()
    assert found[0] == found[1] == [1, 2, 3, *range(rest)]


def test_an_abort_ends_nothing(bench: Bench) -> None:
    """What is downstream is ended by its own abort; a late end would be another request's."""
    bench.open("a", "parts")
    assert marks(bench.accept("a", 2, 1).refs) == [(0, False, False)]
    assert not bench.end("a", 2, keep=False)


# --- a store that fails for a while ---------------------------------------------------------------


def test_a_chunk_keeps_its_number_over_retries(bench: Bench) -> None:
    """C107: and it is announced once, when it is stored."""
    bench.faults.fail_puts(2)
    bench.open("a", "parts")
    news = bench.accept("a", 2, 1)
    assert (news.refs, news.retry_in_s) == ([], WAITS[0])
    news = retry(bench)
    assert (news.refs, news.retry_in_s) == ([], WAITS[1])
    news = retry(bench)
    assert (marks(news.refs), news.retry_in_s) == ([(0, False, False)], None)
    assert marks(bench.accept("a", 3, 2).refs) == [(1, False, False)]
    assert not retry(bench)


def test_chunks_stand_behind_one_that_could_not_be_stored(bench: Bench) -> None:
    """Their puts would succeed, but nothing overtakes."""
    bench.faults.fail_puts(1)
    bench.open("a", "parts")
    bench.accept("a", 2, 1)
    assert not bench.accept("a", 3, 2)
    assert not bench.accept("a", 4, 3)
    assert (len(bench.io), bench.entries()) == (1 + 3, 0)
    refs = retry(bench).refs
    assert marks(refs) == [(n, False, False) for n in range(3)]
    assert bench.ids(refs) == [1, 2, 3]
    assert len(bench.io) == 1


def test_the_end_waits_behind_an_unsent_chunk(bench: Bench) -> None:
    """The request is over by then: what it owes is sent all the same, and the end is one."""
    bench.faults.fail_puts(2)
    bench.open("a", "parts")
    bench.accept("a", 2, 1)
    assert not bench.end("a", 2)
    assert not retry(bench).refs
    refs = retry(bench).refs
    assert marks(refs) == [(0, False, False), (1, True, True)]
    assert len(bench.io) == 0


def test_a_full_edges_payload_is_retried_too() -> None:
    bench = Bench()
    bench.faults.fail_puts(1)
    bench.open("a", "ids")
    bench.accept("a", 2, 1)
    news = bench.end("a", 2)
    assert (news.refs, news.failed, news.retry_in_s) == ([], [], WAITS[0])
    assert bench.ids(retry(bench).refs) == [1]
    bench.close()


def test_other_requests_and_edges_are_not_held_up(bench: Bench) -> None:
    bench.faults.fail_puts(None, "a/parts/")
    bench.open("a", "parts", "ids")
    bench.open("b", "parts")
    news = bench.work(
        tokens={"a": Accepted([1], 2), "b": Accepted([2], 2)},
        ended=[Ended("a", True, 2), Ended("b", True, 2)],
    )
    sent = [(ref.uid, ref.edge, ref.end) for ref in news.refs]
    assert sent == [("b", "parts", False), ("a", "ids", True), ("b", "parts", True)]


# --- a store that fails for good ------------------------------------------------------------------


def test_after_the_policys_attempts_the_request_fails(bench: Bench) -> None:
    """C107: with an error that names edge and chunk; the waits between are the policy's."""
    bench.faults.fail_puts(None)
    bench.open("a", "parts")
    waits = [bench.accept("a", 2, 1).retry_in_s, *(retry(bench).retry_in_s for _ in range(3))]
    assert waits == WAITS
    news = retry(bench)
    ((uid, info),) = news.failed
    assert (uid, info.code, news.retry_in_s) == ("a", "connector", None)
    assert "chunk 0 of edge 'parts'" in info.message
    assert "5 attempts" in info.message
    assert bench.connector.statistics().failures == 5
    assert not bench.end("a", 2, keep=False)
    assert len(bench.io) == 0


def test_a_policy_of_one_attempt_gives_up_at_once() -> None:
    bench = Bench(stream=True, policy=RetryPolicy(attempts=1))
    bench.faults.fail_puts(None)
    bench.open("a", "parts")
    assert errors(bench.accept("a", 2, 1)) == [("a", "connector")]
    assert not bench.accept("a", 3, 2)
    assert not bench.end("a", 3, keep=False)
    assert len(bench.io) == 0
    bench.close()


def test_a_success_gives_the_next_chunk_all_its_attempts(bench: Bench) -> None:
    bench.open("a", "parts")
    for seq in range(3):
        bench.faults.fail_puts(4)
        waits = [bench.accept("a", seq + 2, seq).retry_in_s]
        waits += [retry(bench).retry_in_s for _ in range(3)]
        assert waits == WAITS
        assert marks(retry(bench).refs) == [(seq, False, False)]


def test_a_request_that_has_ended_fails_once_for_all_its_edges(bench: Bench) -> None:
    """Nothing is retried for it any more, also on an edge that has attempts left."""
    bench.faults.fail_puts(None)
    bench.open("a", "parts", "ids")
    bench.accept("a", 2, 1)
    retry(bench)
    bench.end("a", 2)
    news = [retry(bench) for _ in range(20)]
    assert [error for n in news for error in errors(n)] == [("a", "connector")]
    assert not any(n.refs for n in news)
    assert len(bench.io) == 0


def test_what_could_not_be_stored_is_dropped_on_abort(bench: Bench) -> None:
    bench.faults.fail_puts(1)
    bench.open("a", "parts")
    bench.accept("a", 2, 1)
    bench.end("a", 2, keep=False)
    assert not retry(bench)
    assert len(bench.io) == bench.entries() == 0


# --- waits of several requests --------------------------------------------------------------------


def test_nobody_loses_an_attempt_to_anothers_wait(bench: Bench) -> None:
    """A retry comes when the shortest wait is over; longer ones go on by what is left of them."""
    bench.faults.fail_puts(None)
    for uid in "ab":
        bench.open(uid, "parts")
    bench.accept("a", 2, 1)
    assert retry(bench).retry_in_s == 0.1  # a's second attempt has failed
    assert bench.accept("b", 2, 1).retry_in_s == 0.05
    news = retry(bench)  # b's second attempt; a has waited half of its time
    assert news.retry_in_s == pytest.approx(0.05)
    assert bench.connector.statistics().failures == 4


@given(st.lists(st.sampled_from(["retry", "a", "b", "c"]), max_size=40))
def test_every_chunk_comes_once_and_in_order_or_its_request_fails(story: list[str]) -> None:
    """Requests whose puts fail now and then, in any interleaving; `c` fails for good."""
    bench = Bench(stream=True)
    bench.faults.fail_puts(None, "c/")
    refs: list[Ref] = []
    failed: Counter[str] = Counter()
    made: Counter[str] = Counter()

    def note(news: StageNews) -> None:
        refs.extend(news.refs)
        failed.update(uid for uid, _ in news.failed)

    for uid in "abc":
        bench.open(uid, "parts")
    for action in story:
        if action == "retry":
            note(retry(bench))
            continue
        bench.faults.fail_puts(made[action] % 3, f"{action}/parts/0/{made[action]}")
        made[action] += 1
        note(bench.accept(action, made[action] + 1, made[action]))
    for uid in "abc":
        note(bench.end(uid, made[uid] + 1))
    for _ in range(200):
        note(retry(bench))
    assert failed == (Counter("c") if made["c"] else Counter())
    assert len(bench.io) == 0
    for uid in "ab":
        own = [ref for ref in refs if ref.uid == uid]
        assert [ref.seq for ref in own] == list(range(made[uid] + 1))
        assert [ref.end for ref in own] == [False] * made[uid] + [True]
        assert bench.ids(own) == list(range(1, made[uid] + 1))
    bench.close()
