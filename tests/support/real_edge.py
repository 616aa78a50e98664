"""Two stages' schedulers and workers' I/O with a real edge between them, without models.

Schedulers, connectors, adapters' surroundings and payloads are the real ones; only what a model
would compute is made up. Every object that carries a request or its payload is watched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from vllm.v1.request import Request, RequestStatus

import checked
from antiphon.connector.registry import make_connector
from antiphon.core.options import ConnectorSpec, InEdge, OutEdge, StageOptions
from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.retry import RetryPolicy
from antiphon.payload.adapters import Input, OutputNeeds, StageContext, StepRows
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload, Scalar, per_token
from antiphon.sched.ar import ARScheduler
from antiphon.sched.inputs import Wait
from antiphon.testing.faults import FaultyConnector
from antiphon.upstream.envelopes import with_news, work_of
from antiphon.worker.stage_io import StageIO
from factory import make_output, make_request, make_scheduler
from watched import watch

EDGE = "big"
ROWS, WIDTH = 1024, 256  # of a payload, fp32: 1 MiB
PAYLOAD_BYTES = ROWS * WIDTH * 4
PROMPT = 8  # tokens of a consumer's prompt
ROOM_BYTES = 8 * PAYLOAD_BYTES


class BigOut:
    """One payload of 1 MiB at the end; raises there for requests with the parameter `broken`."""

    needs = OutputNeeds()

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _Writer:
        writer = _Writer(bool(params.get("broken")))
        watch(writer)
        return writer


class _Writer:
    def __init__(self, broken: bool) -> None:
        self._broken = broken
        self._tensor = torch.zeros(ROWS, WIDTH)
        watch(self._tensor)

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        return []

    def on_rows(self, rows: StepRows) -> list[Payload]:
        return []

    def on_end(self) -> list[Payload]:
        if self._broken:
            raise ValueError("it was told to")
        return [Payload({"rows": per_token(self._tensor)})]


class BigIn:
    """A prompt of rows that view the payload, `width` of each, an option; raises for requests with
    the parameter `broken`.
    """

    def __init__(self, context: StageContext) -> None:
        self._width = int(context.options.get("width", WIDTH))

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _Reader:
        reader = _Reader(bool(params.get("broken")), self._width)
        watch(reader)
        return reader


class _Reader:
    def __init__(self, broken: bool, width: int) -> None:
        self._broken = broken
        self._width = width

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        tensor = payload.fields["rows"].tensor
        watch(tensor)
        self._kept = tensor
        if self._broken:
            raise ValueError("it was told to")
        plan = PromptPlan(tuple(range(PROMPT)), rows_local=True)
        return Input(plan=plan, prompt_rows=tensor[:PROMPT, : self._width])

    def on_end(self) -> Input:
        raise AssertionError("a full edge brings its payload or an empty end")


class Watched(FaultyConnector):
    """What it hands out is watched."""

    def take(self, key: str) -> memoryview:
        view = super().take(key)
        watch(view)
        return view


class Side:
    """One stage."""

    def __init__(self, options: StageOptions, connector: FaultyConnector) -> None:
        self.connector = connector
        self.scheduler = make_scheduler(
            ARScheduler, options=options, enable_prefix_caching=False, log_stats=False
        )
        policy = RetryPolicy(first_s=0.0, attempts=2)
        self.io = StageIO(options, "no model", connector, embed_width=WIDTH, policy=policy)
        checked.checked(self.io)
        self.ended: dict[str, str | None] = {}  # uid: code of the error, or how it ended
        self._arrivals = 0

    def add(self, uid: str, *, gated: bool, broken: bool = False, tokens: int = 1) -> None:
        """A request that samples `tokens`; `gated`: it waits for a payload, else it sends one."""
        self._arrivals += 1
        request: Request = make_request(
            uid,
            1 if gated else 4,
            max_tokens=tokens,
            arrival_time=float(self._arrivals),
            cache_salt=uid,
        )
        watch(request)
        self.scheduler.coordinator.expect(
            uid,
            wait=Wait(EDGE, 0.0) if gated else None,
            edges=() if gated else (EDGE,),
            params={"broken": broken},
            num_prompt_tokens=request.num_prompt_tokens,
        )
        self.scheduler.add_request(request)

    def abort(self, uid: str) -> None:
        """As the stage's host does it."""
        for request in self.scheduler.finish_requests([uid], RequestStatus.FINISHED_ABORTED):
            self.ended[request.request_id] = "abort"
        self.scheduler.abandon([uid])

    def step(self) -> tuple[list[Ref], list[str]]:
        """One engine step: payloads that are announced, and keys that are used up."""
        scheduled = self.scheduler.schedule()
        if (work := work_of(scheduled)) is not None:
            self.io.submit(work)
        for uid in scheduled.finished_req_ids:
            self.io.removed(uid)
        self.io.finish()
        output = make_output(scheduled, scheduler=self.scheduler)
        made = self.scheduler.update_from_output(scheduled, with_news(output, self.io.take_news()))
        events = self.scheduler.coordinator.take_events()
        for group in made.values():
            for out in group.outputs:
                if out.finish_reason is not None:
                    error = events.errors.get(out.request_id)
                    self.ended[out.request_id] = error.code if error else str(out.finish_reason)
        for uid, error in events.errors.items():
            self.ended.setdefault(uid, error.code)
        return events.refs, events.used.get(EDGE, [])

    def check_integrity(self) -> None:
        self.scheduler.check_integrity()
        self.io.check_integrity()

    def assert_empty(self) -> None:
        """Nothing is left of any request (I1, I2)."""
        self.check_integrity()
        pool = self.scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1  # one is upstream's null block
        assert not self.scheduler.requests
        assert len(self.scheduler.coordinator) == len(self.scheduler.coordinator.gate) == 0
        assert len(self.io) == 0
        assert self.connector.statistics().entries == 0


class RealEdge:
    """A producer and a consumer of `EDGE` on connectors of one kind."""

    def __init__(self, kind: str, run: str) -> None:
        spec = ConnectorSpec(kind, run, ROOM_BYTES)
        connectors = [Watched(make_connector(kind, run, ROOM_BYTES)) for _ in range(2)]
        out, in_ = (OutEdge(EDGE, "real_edge:BigOut"),), (InEdge(EDGE, "real_edge:BigIn"),)
        self.producer = Side(StageOptions("producer", spec, outputs=out), connectors[0])
        self.consumer = Side(StageOptions("consumer", spec, inputs=in_), connectors[1])
        self.faults = connectors[0].faults
        self.damages = connectors[1].faults
        self._under_way: list[Ref] = []

    def produce(self) -> list[Ref]:
        """Step the producer until it has nothing to do; the refs it announces."""
        refs: list[Ref] = []
        while self.producer.scheduler.has_requests():
            refs += self.producer.step()[0]
        return refs

    def consume(self, limit: int = 20) -> None:
        """Step the consumer until it has nothing to do; what it used up reaches the producer."""
        for _ in range(limit):
            if not self.consumer.scheduler.has_requests():
                return
            _, used = self.consumer.step()
            self.producer.scheduler.used(EDGE, used)
        raise AssertionError("the consumer has more to do than it should")

    def close(self) -> None:
        for side in (self.producer, self.consumer):
            side.connector.close()
