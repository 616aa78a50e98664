"""What chunks become for the request that they are fetched for, and what is kept of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.tickets import Arrived, Fetch, StageNews
from antiphon.payload import wire
from antiphon.payload.adapters import Input
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload, per_token
from antiphon.worker.capabilities import Capabilities
from tiny_adapters import CALLS
from worker_bench import SCRIPT, WIDTH, Bench, errors

ROWS = torch.arange(3 * WIDTH, dtype=torch.float32).reshape(3, WIDTH)
LOCAL = PromptPlan((0, 0, 0), rows_local=True)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def arrived(news: StageNews) -> Arrived:
    """The one chunk that arrived; nothing failed."""
    assert news.failed == []
    (found,) = news.arrived
    return found


# --- prompts --------------------------------------------------------------------------------------


def test_a_payload_becomes_a_prompt_of_rows(bench: Bench) -> None:
    ref = bench.store("k", Payload({"rows": per_token(ROWS)}))
    found = arrived(bench.fetch("b", ref))
    assert found.plan is not None
    assert (found.uid, found.key, found.last, found.rows) == ("b", "k", True, 0)
    assert (found.plan.token_ids, found.plan.rows_local) == ((0, 0, 0), True)
    rows = bench.io.prompt_rows("b")
    assert rows is not None
    assert torch.equal(rows.rows, ROWS)
    assert rows.marks is None
    assert not bench.io.has_decode_rows
    assert (bench.entries(), len(bench.io)) == (0, 1)


def test_a_payload_becomes_a_prompt_of_ids(bench: Bench) -> None:
    payload = Payload({"ids": per_token(torch.tensor([4, 5], dtype=torch.int32))})
    found = arrived(bench.fetch("b", bench.store("k", payload, "in-ids")))
    assert found.plan == PromptPlan((4, 5))
    assert bench.io.prompt_rows("b") is None


def test_a_removed_request_leaves_nothing(bench: Bench) -> None:
    """C24: prompt, decode rows and the adapter itself."""
    bench.chunk("b", Input(LOCAL, prompt_rows=ROWS, rows=ROWS, padding=ROWS[0]))
    assert len(bench.io) == 1
    bench.io.removed("b")
    bench.news()
    assert bench.io.prompt_rows("b") is bench.io.decode_rows("b") is None
    assert len(bench.io) == 0


def test_the_removal_of_an_unknown_request_is_harmless(bench: Bench) -> None:
    bench.io.removed("nobody")
    assert not bench.news()


# --- chunks in order ------------------------------------------------------------------------------


def test_chunks_reach_one_adapter_in_the_order_of_their_fetches(bench: Bench) -> None:
    """Absorbed, planned, rows, end: each answer says what the chunk brought."""
    made = [
        Input(),
        Input(LOCAL, prompt_rows=ROWS),
        Input(rows=ROWS),
        Input(rows=ROWS[:1]),
        Input(padding=ROWS[2]),
    ]
    SCRIPT["b"] += made
    refs = [bench.store(f"k{n}", Payload({}), "script", seq=n, end=False) for n in range(4)]
    refs.append(Ref("there", "script", 4, end=True))
    news = bench.work(fetches=[Fetch("b", ref, {}) for ref in refs])
    assert news.arrived == [
        Arrived("b", "k0", False),
        Arrived("b", "k1", False, LOCAL),
        Arrived("b", "k2", False, None, 3),
        Arrived("b", "k3", False, None, 1),
        Arrived("b", None, True),
    ]
    assert CALLS == {"input open": 1, "chunk": 4, "input end": 1}


def test_the_last_chunk_says_so(bench: Bench) -> None:
    bench.chunk("b", Input(), 0)
    bench.chunk("b", Input(), 1, end=True)
    assert (CALLS["chunk"], CALLS["last chunk"], CALLS["input end"]) == (1, 1, 0)


def test_requests_do_not_see_each_others_chunks(bench: Bench) -> None:
    for uid, value in (("b", 1.0), ("c", 2.0)):
        bench.chunk(uid, Input(rows=torch.full((1, WIDTH), value)))
    for uid, value in (("b", 1.0), ("c", 2.0)):
        kept = bench.io.decode_rows(uid)
        assert kept is not None
        assert [row.tolist() for row in kept.rows] == [[value] * WIDTH]


# --- decode rows ----------------------------------------------------------------------------------


def test_decode_rows_are_kept_by_index_and_padded_past_the_end(bench: Bench) -> None:
    bench.chunk("b", Input(rows=ROWS[:2]), 0)
    bench.chunk("b", Input(rows=ROWS[2:]), 1)
    kept = bench.io.decode_rows("b")
    assert kept is not None
    assert [kept.get(i) is None for i in range(5)] == [False, False, False, True, True]
    padding = torch.full((WIDTH,), 9.0)
    bench.chunk("b", Input(padding=padding), 2, end=True)
    found = [kept.get(i) for i in range(5)]
    assert torch.equal(torch.stack([row for row in found if row is not None][:3]), ROWS)
    assert [row is kept.padding for row in found] == [False, False, False, True, True]


def test_padding_alone_conditions_every_token(bench: Bench) -> None:
    """A stream that ended before it brought a row."""
    bench.chunk("b", Input(padding=ROWS[1]), end=True)
    kept = bench.io.decode_rows("b")
    assert kept is not None
    assert kept.get(0) is kept.get(7) is kept.padding is not None
    assert torch.equal(kept.padding, ROWS[1])


def test_kept_rows_are_copies(bench: Bench) -> None:
    """C127: the adapter's buffer, or the payload's memory, is not held or read again."""
    rows, padding = ROWS.clone(), ROWS[0].clone()
    bench.chunk("b", Input(rows=rows, padding=padding))
    rows.fill_(float("nan"))
    padding.fill_(float("nan"))
    kept = bench.io.decode_rows("b")
    assert kept is not None
    assert torch.equal(torch.stack(kept.rows), ROWS)
    assert kept.padding is not None
    assert torch.equal(kept.padding, ROWS[0])


# --- rows that cannot be --------------------------------------------------------------------------

WRONG = {
    "prompt too short": Input(LOCAL, prompt_rows=ROWS[1:]),
    "prompt too wide": Input(LOCAL, prompt_rows=torch.zeros(3, WIDTH + 1)),
    "prompt of one dimension": Input(LOCAL, prompt_rows=torch.zeros(3)),
    "no prompt rows": Input(LOCAL),
    "prompt rows without rows_local": Input(PromptPlan((1, 2, 3)), prompt_rows=ROWS),
    "prompt rows without a plan": Input(prompt_rows=ROWS),
    "rows too wide": Input(rows=torch.zeros(3, WIDTH + 1)),
    "rows of one dimension": Input(rows=torch.zeros(WIDTH)),
    "rows of no dimension": Input(rows=torch.tensor(1.0)),
    "padding too wide": Input(padding=torch.zeros(WIDTH + 1)),
    "padding of two dimensions": Input(padding=ROWS),
}


@pytest.mark.parametrize("made", WRONG.values(), ids=WRONG.keys())
def test_rows_of_a_wrong_shape_fail_their_request(bench: Bench, made: Input) -> None:
    """I4: in the step's tensors they would break it for every request."""
    assert errors(bench.chunk("b", made)) == [("b", "adapter")]
    assert arrived(bench.chunk("c", Input(LOCAL, prompt_rows=ROWS))).uid == "c"


def test_a_later_chunk_of_another_width_fails_the_request(bench: Bench) -> None:
    bench.chunk("b", Input(rows=ROWS), 0)
    news = bench.chunk("b", Input(rows=torch.zeros(1, WIDTH + 1)), 1)
    assert errors(news) == [("b", "adapter")]
    assert f"[1, {WIDTH + 1}]" in news.failed[0][1].message
    assert f"[n, {WIDTH}]" in news.failed[0][1].message


@pytest.mark.parametrize(
    "made",
    [Input(LOCAL, prompt_rows=ROWS), Input(rows=ROWS), Input(padding=ROWS[0])],
    ids=["prompt", "decode", "padding"],
)
def test_a_stage_that_is_given_ids_refuses_rows(made: Input) -> None:
    """It would compute placeholders instead, and nobody would notice."""
    bench = Bench(embed_width=None)
    news = bench.chunk("b", made)
    assert errors(news) == [("b", "adapter")]
    assert "enable_prompt_embeds" in news.failed[0][1].message
    assert bench.io.prompt_rows("b") is bench.io.decode_rows("b") is None
    assert arrived(bench.chunk("c", Input(PromptPlan((1,))))).uid == "c"
    bench.close()


def test_a_model_may_take_rows_of_another_width(bench: Bench) -> None:
    """Its prompt's rows are embeddings all the same."""
    bench.io.attach_model(Capabilities(row_width=5))
    made = Input(LOCAL, prompt_rows=ROWS, rows=torch.ones(2, 5), padding=torch.ones(5))
    assert arrived(bench.chunk("b", made)).rows == 2
    assert errors(bench.chunk("c", Input(rows=ROWS))) == [("c", "adapter")]


def test_a_model_that_embeds_its_prompts_is_given_marks(bench: Bench) -> None:
    bench.io.attach_model(Capabilities(prompt_width=2))
    marks = torch.tensor([[1], [2], [3]], dtype=torch.int16)
    made = Input(LOCAL, prompt_rows=torch.ones(3, 2), prompt_marks=marks)
    assert arrived(bench.chunk("b", made)).plan is not None
    kept = bench.io.prompt_rows("b")
    assert kept is not None
    assert kept.marks is not None
    assert (kept.marks.dtype, kept.marks.tolist()) == (torch.int64, [[1], [2], [3]])


MARKS = {
    "too few": torch.zeros(2, 1, dtype=torch.int64),
    "of one dimension": torch.zeros(3, dtype=torch.int64),
    "not integers": torch.zeros(3, 1),
}


@pytest.mark.parametrize("marks", MARKS.values(), ids=MARKS.keys())
def test_wrong_marks_fail_their_request(bench: Bench, marks: torch.Tensor) -> None:
    bench.io.attach_model(Capabilities(prompt_width=2))
    made = Input(LOCAL, prompt_rows=torch.ones(3, 2), prompt_marks=marks)
    assert errors(bench.chunk("b", made)) == [("b", "adapter")]


def test_marks_for_a_model_that_knows_none(bench: Bench) -> None:
    marks = torch.zeros(3, 1, dtype=torch.int64)
    news = bench.chunk("b", Input(LOCAL, prompt_rows=ROWS, prompt_marks=marks))
    assert errors(news) == [("b", "adapter")]
    assert "prompt_width" in news.failed[0][1].message
    assert errors(bench.chunk("c", Input(prompt_marks=marks))) == [("c", "adapter")]


def test_rows_are_integers_where_the_model_wants_them(bench: Bench) -> None:
    """One request's rows of another kind would break the step for all."""
    assert errors(bench.chunk("a", Input(rows=ROWS.long()))) == [("a", "adapter")]
    bench.io.attach_model(Capabilities(row_width=1, integer_rows=True))
    ids = torch.tensor([[7], [8]])
    assert arrived(bench.chunk("b", Input(rows=ids, padding=ids[0]))).rows == 2
    news = bench.chunk("c", Input(rows=torch.ones(2, 1)))
    assert errors(news) == [("c", "adapter")]
    assert "integers" in news.failed[0][1].message


# --- payloads that are lost or damaged ------------------------------------------------------------

FLAWS = {
    "corrupt": "payload",
    "truncated": "payload",
    "fields": "payload",
    "lost": "connector",
    "missing": "connector",
    "edge": "adapter",
    "plan": "adapter",
    "content": "adapter",
}


@pytest.mark.parametrize(("flaw", "code"), FLAWS.items())
def test_a_bad_payload_fails_only_its_request(bench: Bench, flaw: str, code: str) -> None:
    """C64, C85: never a silent wait; the other payload of the same step is planned."""
    payload = Payload({"other" if flaw == "content" else "rows": per_token(ROWS)})
    good, bad = bench.store("good", payload), bench.store("bad", payload)
    if flaw == "content":
        bench.other.delete(["good"])
        good = bench.store("good", Payload({"rows": per_token(ROWS)}))
    match flaw:
        case "corrupt":
            bench.faults.corrupt("bad")
        case "truncated":
            bench.faults.truncate("bad")
        case "lost":
            bench.faults.lose("bad")
        case "missing":
            bench.other.delete(["bad"])
        case "fields":
            bench.other.delete(["bad"])
            bench.other.put("bad", wire.encode(Payload({"rows": per_token(ROWS[:2])})))
    edge = "nowhere" if flaw == "edge" else "in"
    ref = Ref("there", edge, 0, True, "bad", bad.nbytes, bad.fields)
    params = {"broken": True} if flaw == "plan" else {}
    news = bench.work(fetches=[Fetch("b", ref, params), Fetch("g", good, {})])
    assert errors(news) == [("b", code)]
    assert [found.uid for found in news.arrived] == ["g"]
    assert bench.io.prompt_rows("b") is None
    assert bench.entries() == 0


def test_after_a_failure_the_requests_chunks_are_thrown_away(bench: Bench) -> None:
    """One error, no call, no answer; their memory is given back."""
    assert errors(bench.chunk("b", ValueError("odd"), 0)) == [("b", "adapter")]
    assert not bench.chunk("b", Input(rows=ROWS), 1)
    assert not bench.fetch("b", Ref("there", "script", 2, end=True))
    assert (CALLS["chunk"], CALLS["input end"]) == (1, 0)
    assert (bench.entries(), len(bench.io)) == (0, 1)
    bench.io.removed("b")
    bench.news()
    assert len(bench.io) == 0
    SCRIPT.clear()
    assert arrived(bench.chunk("b", Input(rows=ROWS), 3)).rows == 3  # another of this name


def test_integrity_notices_rows_of_a_request_that_is_gone(bench: Bench) -> None:
    bench.chunk("b", Input(rows=ROWS))
    adapter = bench.io._inlets._adapters.pop("b")
    with pytest.raises(AssertionError, match="without an adapter"):
        bench.io.check_integrity()
    bench.io._inlets._adapters["b"] = adapter
