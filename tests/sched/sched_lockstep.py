"""Drives two schedulers through one workload and compares everything after every step."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from sched_core import TOKENS, Done, Engine
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import Request, RequestStatus

from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.upstream.envelopes import work_of
from factory import make_request, make_scheduler

BLOCK_SIZE = 4
MAX_STEPS = 60

# (blocks, sequences, tokens per step, prefix caching): from roomy to thrashing.
SHAPES = (
    (64, 8, 64, True),
    (24, 4, 8, True),
    (12, 4, 16, True),
    (10, 3, 6, True),
    (12, 4, 16, False),
    (10, 8, 32, False),
)


class Mismatch(AssertionError):
    """The two schedulers differ."""


@dataclass(frozen=True)
class Arrival:
    """One request of a workload."""

    step: int
    family: int  # requests of a family share the front of their prompts
    length: int
    max_tokens: int
    priority: int
    stop: int  # a token that ends it; TOKENS and above are never sampled
    logprobs: int  # -1: none wanted
    client: int


@dataclass(frozen=True)
class Abort:
    """Abort of the request that arrived as number `which`."""

    step: int
    which: int
    late: bool  # while the step's batch is on the device


@dataclass(frozen=True)
class Workload:
    """Everything that happens from outside."""

    shape: int
    arrivals: tuple[Arrival, ...]
    aborts: tuple[Abort, ...]
    resets: tuple[int, ...]  # steps before which the prefix cache is reset, running ones included


def workloads(max_requests: int = 7) -> st.SearchStrategy[Workload]:
    """Random workloads, shrinking towards few short requests that arrive at once."""
    arrivals = st.builds(
        Arrival,
        step=st.integers(0, 14),
        family=st.integers(0, 2),
        length=st.integers(1, 22),
        max_tokens=st.integers(1, 12),
        priority=st.integers(0, 2),
        stop=st.integers(0, 2 * TOKENS),
        logprobs=st.integers(-1, 2),
        client=st.integers(0, 1),
    )
    aborts = st.builds(
        Abort, step=st.integers(0, 25), which=st.integers(0, max_requests), late=st.booleans()
    )
    return st.builds(
        Workload,
        shape=st.integers(0, len(SHAPES) - 1),
        arrivals=st.lists(arrivals, min_size=1, max_size=max_requests).map(tuple),
        aborts=st.lists(aborts, max_size=3).map(tuple),
        resets=st.lists(st.integers(1, 20), max_size=1).map(tuple),
    )


def prompt(arrival: Arrival) -> list[int]:
    """Equal within a family up to the shorter one's length, so that prefixes are found again."""
    return [100 * (arrival.family + 1) + i for i in range(arrival.length)]


class Lockstep:
    """A stock scheduler and one under test, fed the same."""

    def __init__(
        self,
        stock: type[Scheduler],
        tested: type[Scheduler],
        workload: Workload,
        *,
        overlap: bool,
        policy: str,
        routed: bool = False,
    ) -> None:
        blocks, sequences, budget, caching = SHAPES[workload.shape]
        self.workload = workload
        self.routed = routed
        self.told: dict[str, list[int]] = {}  # tokens that a routed scheduler's worker heard of
        self.made: dict[str, list[int]] = {}  # tokens that the stock scheduler put out
        self.engines = tuple(
            Engine(
                make_scheduler(
                    cls,
                    async_scheduling=overlap,
                    num_blocks=blocks,
                    block_size=BLOCK_SIZE,
                    max_num_seqs=sequences,
                    max_num_batched_tokens=budget,
                    max_model_len=64,
                    enable_prefix_caching=caching,
                    policy=policy,
                    include_finished_set=True,
                ),
                depth=2 if overlap else 1,
            )
            for cls in (stock, tested)
        )
        self.preemptions = 0
        self.hits = 0
        self.ends = 0

    def run(self) -> None:
        """The workload until nothing is left, or MAX_STEPS; then everything is aborted."""
        last = max(arrival.step for arrival in self.workload.arrivals)
        for number in range(MAX_STEPS):
            self._arrive(number)
            if number > last and not self.engines[0].has_work:
                break
            self._step(number)
        self._finish()

    def _arrive(self, number: int) -> None:
        for index, arrival in enumerate(self.workload.arrivals):
            if arrival.step == number:
                stock, tested = (engine.scheduler for engine in self.engines)
                stock.add_request(_request(index, arrival))
                if self.routed:
                    _expect_routed(tested, f"r{index}", arrival)
                tested.add_request(_request(index, arrival))
        if number in self.workload.resets:
            reset = [e.scheduler.reset_prefix_cache(True) for e in self.engines]
            expect("result of reset_prefix_cache", *reset)
        self._abort([a for a in self.workload.aborts if a.step == number and not a.late])

    def _abort(self, aborts: list[Abort]) -> None:
        uids = [f"r{abort.which}" for abort in aborts]
        ended = [
            [
                r.request_id
                for r in e.scheduler.finish_requests(uids, RequestStatus.FINISHED_ABORTED)
            ]
            for e in self.engines
        ]
        expect("ended by abort", *map(sorted, ended))

    def _step(self, number: int) -> None:
        late = [f"r{a.which}" for a in self.workload.aborts if a.step == number and a.late]
        expect("has_requests", *(engine.has_work for engine in self.engines))
        self._compare(*(e.step(_abort_call(e.scheduler, late)) for e in self.engines))

    def _finish(self) -> None:
        """Abort what is left, let the steps in flight end, compare a last time."""
        for engine in self.engines:
            engine.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
        for _ in range(4):
            self._compare(*(engine.step() for engine in self.engines))
        for engine in self.engines:
            expect("work left", engine.has_work, False)
            expect("requests left", list(engine.scheduler.requests), [])
            pool = engine.scheduler.kv_cache_manager.block_pool
            expect("blocks lost", pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(), 0)
        if self.routed:
            expect("tokens", {u: t for u, t in self.made.items() if t}, self.told)

    def _compare(self, stock: Done, tested: Done) -> None:
        if self.routed:
            self._listen(stock, tested)
        else:  # without a stage feature even the class is upstream's own
            expect("class", type(stock.scheduled), type(tested.scheduled))
        compare_scheduled(stock.scheduled, tested.scheduled)
        compare_outputs(stock.outputs, tested.outputs)
        a, b = (engine.scheduler for engine in self.engines)
        compare_schedulers(a, b)
        for group in (stock.outputs or {}).values():
            if group.scheduler_stats is not None:
                self.hits += group.scheduler_stats.prefix_cache_stats.hits
            self.ends += sum(out.finish_reason is not None for out in group.outputs)
        self.preemptions = max(
            self.preemptions, *(r.num_preemptions for r in a.requests.values()), 0, 0
        )

    def _listen(self, stock: Done, tested: Done) -> None:
        for out in stock:
            self.made.setdefault(out.request_id, []).extend(out.new_token_ids)
        work = None if tested.scheduled is None else work_of(tested.scheduled)
        for uid, accepted in (work.tokens if work else {}).items():
            self.told.setdefault(uid, []).extend(accepted.token_ids)
            length = len(prompt(self.workload.arrivals[int(uid[1:])])) + len(self.told[uid])
            expect(f"count of {uid}", length, accepted.num_tokens)


def _expect_routed(scheduler: Scheduler, uid: str, arrival: Arrival) -> None:
    assert isinstance(scheduler, StageSchedulerMixin)
    scheduler.coordinator.expect(
        uid, wait=None, edges=("out",), params={}, num_prompt_tokens=arrival.length
    )


def _request(index: int, arrival: Arrival) -> Request:
    request = make_request(
        f"r{index}",
        tokens=prompt(arrival),
        max_tokens=arrival.max_tokens,
        stop_token_ids=[arrival.stop],
        priority=arrival.priority,
        arrival_time=float(arrival.step),
        block_size=BLOCK_SIZE,
        client_index=arrival.client,
    )
    if arrival.logprobs >= 0 and request.sampling_params is not None:
        request.sampling_params.logprobs = arrival.logprobs
    return request


def _abort_call(scheduler: Scheduler, uids: list[str]) -> Any:
    return lambda: scheduler.finish_requests(uids, RequestStatus.FINISHED_ABORTED)


# --- comparison -----------------------------------------------------------------------------------


def expect(what: str, stock: Any, tested: Any) -> None:
    """Raise Mismatch unless both are equal."""
    if stock != tested:
        raise Mismatch(f"{what}: stock {stock!r}, tested {tested!r}")


_SCHEDULED = tuple(f.name for f in dataclasses.fields(SchedulerOutput))


def compare_scheduled(stock: SchedulerOutput | None, tested: SchedulerOutput | None) -> None:
    """Every field that upstream's class has."""
    expect("scheduled at all", stock is None, tested is None)
    if stock is None or tested is None:
        return
    for name in _SCHEDULED:
        a, b = vars(stock)[name], vars(tested)[name]
        if name == "scheduled_new_reqs":
            a, b = [_new(x) for x in a], [_new(x) for x in b]
        expect(f"SchedulerOutput.{name}", a, b)
    # Order matters: the runner fills its batch in it.
    expect("order", list(stock.num_scheduled_tokens), list(tested.num_scheduled_tokens))


def _new(data: Any) -> dict[str, Any]:
    """SamplingParams have no equality of their own use: their text says all."""
    fields = dict(vars(data))
    fields["sampling_params"] = repr(fields["sampling_params"])
    return fields


def compare_outputs(
    stock: dict[int, EngineCoreOutputs] | None, tested: dict[int, EngineCoreOutputs] | None
) -> None:
    """Tokens, ends, logprobs, statistics: all but times."""
    expect("clients with outputs", stock and list(stock), tested and list(tested))
    for client, a in (stock or {}).items():
        b = (tested or {})[client]
        for name in a.__struct_fields__:
            if name not in ("outputs", "timestamp"):
                expect(f"EngineCoreOutputs.{name}", _field(a, name), _field(b, name))
        ids = [[out.request_id for out in group.outputs] for group in (a, b)]
        expect("order of outputs", *ids)
        for x, y in zip(a.outputs, b.outputs, strict=True):
            for name in EngineCoreOutput.__struct_fields__:
                expect(f"{x.request_id}.{name}", _field(x, name), _field(y, name))


def _field(struct: Any, name: str) -> Any:
    value = struct.__getattribute__(name)
    if name == "events" and value is not None:
        return [event.type for event in value]
    if isinstance(value, LogprobsLists):
        return [v.tolist() if isinstance(v, np.ndarray) else v for v in value]
    return value


_REQUEST = (
    "status",
    "num_computed_tokens",
    "num_output_placeholders",
    "num_in_flight_tokens",
    "num_stale_output_tokens",
    "drop_stale_output",
    "num_preemptions",
    "is_prefill_chunk",
    "stop_reason",
    "_all_token_ids",
    "_output_token_ids",
    "block_hashes",
    "num_prompt_tokens",
    "next_decode_eligible_step",
)


def compare_schedulers(stock: Scheduler, tested: Scheduler) -> None:
    """Queues, requests, block tables and the pool."""
    expect("live requests", list(stock.requests), list(tested.requests))
    for name in ("running", "waiting", "kv_holding_waiting"):
        queues = [[r.request_id for r in vars(s)[name]] for s in (stock, tested)]
        expect(f"queue {name}", *queues)
    deferred = [{r.request_id for r in s.deferred_waiting} for s in (stock, tested)]
    expect("deferred requests", *deferred)
    expect("finished ids", stock.finished_req_ids, tested.finished_req_ids)
    expect("preempted ids", stock.reset_preempted_req_ids, tested.reset_preempted_req_ids)
    expect("unfinished", stock.get_num_unfinished_requests(), tested.get_num_unfinished_requests())
    for uid, request in stock.requests.items():
        other = tested.requests[uid]
        for name in _REQUEST:
            expect(f"{uid}.{name}", vars(request)[name], vars(other)[name])
        tables = [s.kv_cache_manager.get_block_ids(uid) for s in (stock, tested)]
        expect(f"block table of {uid}", *tables)
    pools = [s.kv_cache_manager.block_pool.free_block_queue for s in (stock, tested)]
    # The order too: it decides which cached block is given up next.
    expect("free blocks", *([b.block_id for b in p.get_all_free_blocks()] for p in pools))
