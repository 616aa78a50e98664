"""The worker's end of every edge, with a real connector and small adapters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tiny_adapters
from antiphon.connector.inproc import InprocConnector
from antiphon.core.options import ConnectorSpec, InEdge, OutEdge, StageOptions
from antiphon.core.tickets import Accepted, Ended, Fetch, StageNews, StageWork, Ticket
from antiphon.errors import AdapterError
from antiphon.payload import wire
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload, per_token
from antiphon.worker.device import CpuOps
from antiphon.worker.materialise import StepRow, materialise
from antiphon.worker.stage_io import StageIO
from tiny_adapters import CALLS, SEEN

_runs = itertools.count()
OUTPUTS = {"ids": "TokensOut", "rows": "RowsOut", "parts": "PartsOut"}


class Bench:
    """A StageIO, and the other stage's end of its connector."""

    def __init__(self, max_bytes: int = 1 << 20, fail: str = "") -> None:
        run = f"io{next(_runs)}"
        self.connector = InprocConnector(run, max_bytes)
        self.other = InprocConnector(run, 1 << 20)
        options = StageOptions(
            "here",
            ConnectorSpec("inproc", run),
            inputs=(
                InEdge("in-ids", "tiny_adapters:TokensIn"),
                InEdge("in", "tiny_adapters:RowsIn"),
            ),
            outputs=tuple(
                OutEdge(name, f"tiny_adapters:{cls}", {"fail": fail})
                for name, cls in OUTPUTS.items()
            ),
        )
        self.io = StageIO(options, "no model", self.connector)

    def work(self, **orders: Any) -> StageNews:
        """One step's orders and what they brought."""
        self.io.execute(StageWork(**orders))
        self.io.check_integrity()
        return self.io.take_news()

    def open(self, uid: str, *edges: str, **params: Any) -> StageNews:
        return self.work(tickets=[Ticket(uid, edges, params)])

    def accept(self, uid: str, num_tokens: int, *token_ids: int) -> StageNews:
        return self.work(tokens={uid: Accepted(list(token_ids), num_tokens)})

    def end(self, uid: str, num_tokens: int, *, keep: bool = True) -> StageNews:
        return self.work(ended=[Ended(uid, keep, num_tokens)])

    def rows(self, uid: str, first: int, count: int) -> None:
        """A step computed these positions; each row says which."""
        log = self.io.row_log(uid)
        assert log is not None
        hidden = torch.arange(first, first + count, dtype=torch.float32).unsqueeze(1)
        assert materialise(CpuOps(), [StepRow(log, 0, 0, count, first)], hidden, {}, 1) == []

    def store(self, key: str, payload: Payload) -> Ref:
        """The other stage stores a payload and announces it."""
        nbytes = self.other.put(key, wire.encode(payload))
        return Ref("there", "in", 0, True, key, nbytes, payload.specs())

    def entries(self) -> int:
        return self.connector.statistics().entries + self.other.statistics().entries

    def close(self) -> None:
        self.connector.close()
        self.other.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    tiny_adapters.forget()
    made = Bench()
    yield made
    made.close()


def errors(news: StageNews) -> list[tuple[str, str]]:
    return [(uid, info.code) for uid, info in news.failed]


def take(bench: Bench, ref: Ref) -> Payload:
    """What the consumer of this ref gets."""
    assert ref.key is not None
    return wire.decode(bench.other.take(ref.key), expect=ref.fields)


# --- producing ------------------------------------------------------------------------------------


def test_tokens_become_one_payload_at_the_end(bench: Bench) -> None:
    assert not bench.open("a", "ids")
    assert not bench.accept("a", 4, 7)
    assert not bench.accept("a", 6, 8, 9)
    (ref,) = bench.end("a", 6).refs
    assert (ref.uid, ref.edge, ref.seq, ref.end) == ("a", "ids", 0, True)
    assert take(bench, ref).fields["ids"].tensor.tolist() == [7, 8, 9]
    assert len(bench.io) == bench.entries() == 0


def test_tokens_of_the_last_step_come_before_the_end(bench: Bench) -> None:
    """Both in one step's orders: what was accepted is part of what ends."""
    bench.open("a", "ids")
    news = bench.work(tokens={"a": Accepted([5], 3)}, ended=[Ended("a", True, 3)])
    assert take(bench, news.refs[0]).fields["ids"].tensor.tolist() == [5]


def test_everything_in_one_step(bench: Bench) -> None:
    news = bench.work(
        tickets=[Ticket("a", ("ids",), {})],
        tokens={"a": Accepted([5], 3)},
        ended=[Ended("a", True, 3)],
    )
    assert take(bench, news.refs[0]).fields["ids"].tensor.tolist() == [5]


def test_rows_are_released_up_to_the_last_token_that_was_forwarded(bench: Bench) -> None:
    """C68: the last accepted token has no row, however the request ended."""
    bench.open("a", "rows")
    bench.rows("a", 0, 3)
    bench.accept("a", 4, 7)
    assert SEEN["rows", "a"].positions == [0, 1, 2]
    bench.rows("a", 3, 1)
    bench.rows("a", 4, 1)  # a step ahead of the stop
    (ref,) = bench.end("a", 5).refs
    assert take(bench, ref).fields["rows"].tensor[:, 0].tolist() == [0, 1, 2, 3]
    assert not bench.io.wants_rows


def test_payloads_leave_at_once_and_only_the_last_ends(bench: Bench) -> None:
    """The first part does not wait for the second; what ends the stream may be empty."""
    bench.open("a", "parts")
    refs = []
    for num_tokens, ids in ((2, [1]), (4, [2, 3])):
        (ref,) = bench.accept("a", num_tokens, *ids).refs
        refs.append(ref)
    (end,) = bench.end("a", 4).refs
    assert [(r.seq, r.end, r.empty) for r in [*refs, end]] == [
        (0, False, False),
        (1, False, False),
        (2, True, True),
    ]
    assert [take(bench, ref).fields["ids"].tensor.tolist() for ref in refs] == [[1], [2, 3]]


def test_one_step_may_bring_several_payloads(bench: Bench) -> None:
    bench.open("a", "parts", each=True)
    refs = bench.accept("a", 4, 1, 2, 3).refs
    assert [(ref.seq, ref.end, ref.empty) for ref in refs] == [(n, False, False) for n in range(3)]


def test_the_last_of_several_payloads_at_the_end_ends(bench: Bench) -> None:
    bench.open("a", "parts", rest=2)
    refs = bench.end("a", 1).refs
    assert [(ref.seq, ref.end, ref.empty) for ref in refs] == [(0, False, False), (1, True, False)]


def test_nothing_to_say_is_an_explicit_empty_end(bench: Bench) -> None:
    """C115: on a full edge too, and nothing is stored for it."""
    bench.open("a", "ids", "rows", silent=True)
    news = bench.end("a", 1)
    assert [(ref.edge, ref.seq, ref.end, ref.empty) for ref in news.refs] == [
        ("ids", 0, True, True),
        ("rows", 0, True, True),
    ]
    assert bench.entries() == 0


def test_what_was_collected_is_dropped_on_abort(bench: Bench) -> None:
    """C82: no payload, no end, no entry."""
    bench.open("a", "ids", "rows")
    bench.rows("a", 0, 3)
    bench.accept("a", 4, 7)
    assert not bench.end("a", 4, keep=False)
    assert len(bench.io) == bench.entries() == 0
    assert SEEN["ids", "a"].ends == 0


def test_a_request_without_edges_that_want_rows_has_no_log(bench: Bench) -> None:
    """C81."""
    bench.open("a", "ids")
    assert bench.io.row_log("a") is None
    assert bench.io.row_log("unknown") is None
    assert not bench.io.wants_rows


def test_the_edges_that_want_rows_are_known(bench: Bench) -> None:
    assert bench.io.row_edges == ["rows"]


@pytest.mark.parametrize("at", ["open", "tokens", "rows", "end"])
def test_an_adapter_that_raises_fails_only_its_request(at: str) -> None:
    tiny_adapters.forget()
    bench = Bench(fail=at)
    edge = "rows" if at == "rows" else "ids"
    news = [
        bench.work(tickets=[Ticket("bad", (edge,), {"broken": True}), Ticket("good", (edge,), {})])
    ]
    for uid in ("bad", "good"):
        if bench.io.row_log(uid) is not None:
            bench.rows(uid, 0, 2)
    both = {uid: Accepted([7], 3) for uid in ("bad", "good")}
    news.append(bench.work(tokens=both))
    news.append(bench.work(ended=[Ended("bad", True, 3), Ended("good", True, 3)]))
    assert [error for n in news for error in errors(n)] == [("bad", "adapter")]
    assert [ref.uid for n in news for ref in n.refs] == ["good"]
    assert len(bench.io) == 0
    bench.close()


def test_after_a_failure_the_request_is_left_alone(bench: Bench) -> None:
    """Steps may still be on their way: no second error, no payload, no call."""
    bench.open("a", "ids")
    bench.io.fail("a", AdapterError("its rows could not be had"))
    bench.io.fail("a", AdapterError("nor those of the step that was in flight"))
    assert errors(bench.io.take_news()) == [("a", "adapter")]
    assert bench.io.row_log("a") is None
    assert not bench.accept("a", 3, 1)
    assert not bench.end("a", 3)
    assert CALLS["tokens"] == CALLS["end"] == 0


def test_a_connector_without_room_fails_only_the_request(bench: Bench) -> None:
    small = Bench(max_bytes=300)
    for uid, count in (("big", 200), ("small", 1)):
        small.open(uid, "ids")
        small.accept(uid, count + 1, *range(count))
    news = small.work(ended=[Ended("big", True, 201), Ended("small", True, 2)])
    assert errors(news) == [("big", "connector")]
    assert [ref.uid for ref in news.refs] == ["small"]
    small.close()


def test_an_unknown_edge_fails_the_request(bench: Bench) -> None:
    assert errors(bench.open("a", "nowhere")) == [("a", "adapter")]
    assert len(bench.io) == 0


# --- consuming ------------------------------------------------------------------------------------

ROWS = torch.arange(6, dtype=torch.float32).reshape(3, 2)


def test_a_payload_becomes_a_prompt_of_rows(bench: Bench) -> None:
    ref = bench.store("k", Payload({"rows": per_token(ROWS)}))
    ((uid, plan),) = bench.work(fetches=[Fetch("b", ref, {})]).planned
    assert (uid, plan.token_ids, plan.rows_local) == ("b", (0, 0, 0), True)
    rows = bench.io.prompt_rows("b")
    assert rows is not None
    assert torch.equal(rows, ROWS)
    assert (bench.entries(), len(bench.io)) == (0, 1)
    bench.io.removed("b")
    assert bench.io.prompt_rows("b") is None
    assert len(bench.io) == 0


def test_a_payload_becomes_a_prompt_of_ids(bench: Bench) -> None:
    payload = Payload({"ids": per_token(torch.tensor([4, 5], dtype=torch.int32))})
    ref = bench.store("k", payload)
    news = bench.work(fetches=[Fetch("b", Ref("there", "in-ids", 0, True, "k", 1, ref.fields), {})])
    ((_, plan),) = news.planned
    assert (plan.token_ids, plan.rows_local) == ((4, 5), False)
    assert bench.io.prompt_rows("b") is None


@pytest.mark.parametrize(
    ("flaw", "code"),
    [
        ("bytes", "payload"),
        ("truncated", "payload"),
        ("fields", "payload"),
        ("missing", "connector"),
        ("edge", "adapter"),
        ("key", "adapter"),
        ("plan", "adapter"),
        ("short", "adapter"),
        ("content", "adapter"),
    ],
)
def test_a_bad_payload_fails_only_its_request(bench: Bench, flaw: str, code: str) -> None:
    """C64, C85: and the other payload of the same step is planned."""
    good = bench.store("good", Payload({"rows": per_token(ROWS)}))
    payload = Payload({"other" if flaw == "content" else "rows": per_token(ROWS)})
    parts = wire.encode(payload)
    fields = good.fields if flaw == "fields" else payload.specs()
    if flaw == "fields":
        parts = wire.encode(Payload({"rows": per_token(ROWS[:2])}))
    raw = bytearray().join(parts)
    if flaw == "bytes":
        raw[0] ^= 0xFF
    if flaw != "missing":
        bench.other.put("bad", [raw[:-1] if flaw == "truncated" else raw])
    edge = "nowhere" if flaw == "edge" else "in"
    ref = Ref("there", edge, 0, True, None if flaw == "key" else "bad", len(raw), fields)
    params = {"plan": {"broken": True}, "short": {"short": True}}.get(flaw, {})
    news = bench.work(fetches=[Fetch("b", ref, params), Fetch("g", good, {})])
    assert errors(news) == [("b", code)]
    assert [uid for uid, _ in news.planned] == ["g"]
    assert bench.io.prompt_rows("b") is None
    if flaw != "key":
        assert bench.entries() == 0


def test_discarded_payloads_are_gone_whoever_stored_them(bench: Bench) -> None:
    """C82."""
    bench.open("a", "ids")
    bench.accept("a", 2, 1)
    (mine,) = bench.end("a", 2).refs
    theirs = bench.store("k", Payload({"rows": per_token(ROWS)}))
    bench.work(discards=[str(mine.key), str(theirs.key), "never stored"])
    assert bench.entries() == 0


# --- checks ---------------------------------------------------------------------------------------


def test_integrity_notices_a_wrong_count(bench: Bench) -> None:
    bench.open("a", "rows")
    bench.io._num_row_logs = 0
    with pytest.raises(AssertionError, match="rows"):
        bench.io.check_integrity()


def test_an_adapter_that_cannot_be_loaded_is_its_authors_fault() -> None:
    options = StageOptions(
        "here", ConnectorSpec("inproc", "x"), outputs=(OutEdge("e", "tiny_adapters:Nobody"),)
    )
    with pytest.raises(AdapterError, match="Nobody"):
        StageIO(options, "no model", InprocConnector("x", 1))


def test_an_adapter_that_is_no_class_is_its_authors_fault() -> None:
    options = StageOptions(
        "here", ConnectorSpec("inproc", "x"), outputs=(OutEdge("e", "tiny_adapters:SEEN"),)
    )
    with pytest.raises(AdapterError, match="not a class"):
        StageIO(options, "no model", InprocConnector("x", 1))
