"""A StageIO on a connector that obeys the test, and the other stages' end of that connector."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import checked
import tiny_adapters
from antiphon.connector.inproc import InprocConnector
from antiphon.core.options import ConnectorSpec, InEdge, OutEdge, StageOptions
from antiphon.core.retry import RetryPolicy
from antiphon.core.tickets import Accepted, Ended, Fetch, StageNews, StageWork, Ticket
from antiphon.payload import wire
from antiphon.payload.adapters import Input, OutputNeeds, StageContext, StepRows
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload, Scalar, per_token
from antiphon.testing.faults import FaultyConnector
from antiphon.worker.device import CpuOps
from antiphon.worker.materialise import StepRow, materialise
from antiphon.worker.stage_io import StageIO

WIDTH = 2  # of the bench's input embeddings
OUTPUTS = {
    "ids": "tiny_adapters:TokensOut",
    "rows": "tiny_adapters:RowsOut",
    "parts": "tiny_adapters:PartsOut",
    "row-parts": "worker_bench:RowPartsOut",
    "quiet": "worker_bench:QuietOut",
}
INPUTS = {
    "in": "tiny_adapters:RowsIn",
    "in-ids": "tiny_adapters:TokensIn",
    "script": "worker_bench:ScriptIn",
}
# What the next chunks of a request become on the edge "script": an input, or the error it raises.
SCRIPT: dict[str, deque[Input | Exception]] = defaultdict(deque)
_runs = itertools.count()


class Bench:
    """One stage's worker. All its outgoing edges are streams, or none is; more can be added."""

    def __init__(
        self,
        *,
        stream: bool = False,
        fail: str = "",
        max_bytes: int = 1 << 20,
        policy: RetryPolicy | None = None,
        embed_width: int | None = WIDTH,
        inputs: Sequence[InEdge] = (),
        outputs: Sequence[OutEdge] = (),
    ) -> None:
        tiny_adapters.forget()
        SCRIPT.clear()
        run = f"bench{next(_runs)}"
        self.connector = FaultyConnector(InprocConnector(run, max_bytes))
        self.faults = self.connector.faults
        self.other = InprocConnector(run, 1 << 20)
        options = StageOptions(
            "here",
            ConnectorSpec("inproc", run),
            inputs=(*(InEdge(name, adapter) for name, adapter in INPUTS.items()), *inputs),
            outputs=(
                *(OutEdge(name, made, {"fail": fail}, stream) for name, made in OUTPUTS.items()),
                *outputs,
            ),
        )
        self.io = StageIO(
            options, "no model", self.connector, embed_width=embed_width, policy=policy
        )
        checked.checked(self.io)

    # --- orders -------------------------------------------------------------------------------

    def work(self, **orders: Any) -> StageNews:
        """One step's orders and what they brought."""
        self.io.submit(StageWork(**orders))
        return self.news()

    def news(self) -> StageNews:
        """Carry out what has been submitted."""
        self.io.finish()
        self.io.check_integrity()
        return self.io.take_news()

    def open(self, uid: str, *edges: str, **params: Any) -> StageNews:
        return self.work(tickets=[Ticket(uid, edges, params)])

    def accept(self, uid: str, num_tokens: int, *token_ids: int) -> StageNews:
        return self.work(tokens={uid: Accepted(list(token_ids), num_tokens)})

    def end(self, uid: str, num_tokens: int, *, keep: bool = True) -> StageNews:
        return self.work(ended=[Ended(uid, keep, num_tokens)])

    def fetch(self, uid: str, ref: Ref, **params: Any) -> StageNews:
        return self.work(fetches=[Fetch(uid, ref, params)])

    def chunk(self, uid: str, made: Input | Exception, seq: int = 0, *, end: bool = False) -> Any:
        """Fetch a chunk that becomes `made`; the news."""
        SCRIPT[uid].append(made)
        ref = self.store(f"{uid}/{seq}", Payload({}), "script", seq=seq, end=end)
        return self.fetch(uid, ref)

    # --- around it ----------------------------------------------------------------------------

    def rows(self, uid: str, first: int, count: int) -> None:
        """A step computes these positions; each row says which."""
        log = self.io.row_log(uid)
        assert log is not None
        hidden = torch.arange(first, first + count, dtype=torch.float32).unsqueeze(1)
        assert materialise(CpuOps(), [StepRow(log, 0, 0, count, first)], hidden, {}, 1) == []

    def store(
        self, key: str, payload: Payload, edge: str = "in", *, seq: int = 0, end: bool = True
    ) -> Ref:
        """Another stage stores a payload and announces it."""
        nbytes = self.other.put(key, wire.encode(payload))
        return Ref("there", edge, seq, end, key, nbytes, payload.specs())

    def take(self, ref: Ref) -> Payload:
        """What the consumer of this ref gets."""
        assert ref.key is not None
        view = self.other.take(ref.key)
        assert view.nbytes == ref.nbytes
        return wire.decode(view, expect=ref.fields)

    def ids(self, refs: Sequence[Ref]) -> list[int]:
        """The ids of these payloads, one after the other."""
        found: list[int] = []
        for ref in refs:
            if ref.key is not None:
                found += self.take(ref).fields["ids"].tensor.tolist()
        return found

    def entries(self) -> int:
        return self.connector.statistics().entries + self.other.statistics().entries

    def close(self) -> None:
        self.connector.close()
        self.other.close()


def errors(news: StageNews) -> list[tuple[str, str]]:
    """The requests that failed, with the errors' codes."""
    return [(uid, info.code) for uid, info in news.failed]


def marks(refs: Sequence[Ref]) -> list[tuple[int, bool, bool]]:
    """(number, whether it is the end, whether it is empty) of each."""
    return [(ref.seq, ref.end, ref.empty) for ref in refs]


class ScriptIn:
    """What a chunk becomes is what `SCRIPT` says."""

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _Script:
        tiny_adapters.CALLS["input open"] += 1
        return _Script(uid)


@dataclass
class _Script:
    uid: str

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        tiny_adapters.CALLS["last chunk" if last else "chunk"] += 1
        return self._next()

    def on_end(self) -> Input:
        tiny_adapters.CALLS["input end"] += 1
        return self._next()

    def _next(self) -> Input:
        made = SCRIPT[self.uid].popleft()
        if isinstance(made, Exception):
            raise made
        return made


class QuietOut:
    """Wants nothing of any step; one payload at the end."""

    needs = OutputNeeds()

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _Quiet:
        tiny_adapters.CALLS["open"] += 1
        return _Quiet()


class _Quiet:
    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        tiny_adapters.CALLS["tokens"] += 1
        return []

    def on_rows(self, rows: StepRows) -> list[Payload]:
        tiny_adapters.CALLS["rows"] += 1
        return []

    def on_end(self) -> list[Payload]:
        tiny_adapters.CALLS["end"] += 1
        return [Payload({"ids": per_token(torch.tensor([1], dtype=torch.int32))})]


class RowPartsOut:
    """One payload for each step's hidden rows; raises for requests with the parameter `broken`."""

    needs = OutputNeeds(include_hidden=True)

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _RowParts:
        return _RowParts(bool(params.get("broken")))


@dataclass
class _RowParts:
    broken: bool

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        return []

    def on_rows(self, rows: StepRows) -> list[Payload]:
        if self.broken:
            raise tiny_adapters.Broken("rows")
        assert rows.hidden is not None
        return [Payload({"rows": per_token(rows.hidden)})]

    def on_end(self) -> list[Payload]:
        return []
