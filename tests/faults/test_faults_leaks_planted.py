"""Each check of a store sees what it is there to see: one fault planted, one AssertionError."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from antiphon.connector.pages import PagePool
from antiphon.core.chunks import ChunkOrder
from antiphon.core.inflow import Inflow
from antiphon.core.options import ConnectorSpec, StageOptions
from antiphon.core.prompt_plan import PromptPlan, PromptUpdate, UpdateKind
from antiphon.orchestrator.admission import Admission
from antiphon.payload.ref import Ref
from antiphon.sched.ar import ARScheduler
from antiphon.sched.sessions import Session, SessionUpdate
from antiphon.testing.fake_store import FakeStore
from antiphon.worker.kv_model import GivenCaches
from antiphon.worker.rows import PendingRows, RowLog
from factory import make_scheduler
from worker_bench import Bench


def chunk(seq: int) -> Ref:
    return Ref("a", "edge", seq, False, key=f"k{seq}")


def test_a_chunk_whose_turn_has_come() -> None:
    order = ChunkOrder()
    order.offer(chunk(1))
    order.check_integrity()
    order.next_seq = 1
    with pytest.raises(AssertionError, match="turn has come"):
        order.check_integrity()


def test_a_chunk_behind_the_end() -> None:
    order = ChunkOrder()
    order.offer(chunk(3))
    order.end_seq = 2
    with pytest.raises(AssertionError, match="behind the end"):
        order.check_integrity()


def test_a_chunk_to_run_that_is_used_up() -> None:
    inflow = Inflow("edge", stream=True, keys={"k"})
    inflow.plans.append((PromptPlan((1,)), "k"))
    inflow.check_integrity()
    inflow.keys.clear()
    with pytest.raises(AssertionError, match="used up"):
        inflow.check_integrity()


def test_rows_that_nobody_counts() -> None:
    inflow = Inflow("edge", stream=True, keys={"k"})
    inflow.answered("k", 2, last=False, kept=False)
    inflow.check_integrity()
    inflow.rows = 1
    with pytest.raises(AssertionError, match="miscounted"):
        inflow.check_integrity()


def test_pages_that_would_be_written_over() -> None:
    """C82: what is stored must be somebody's."""
    pool = PagePool()
    pages, payload = pool.acquire(1 << 20)
    pages.stored = payload.nbytes
    pool.check_integrity()
    assert isinstance(payload, np.ndarray)
    del payload
    with pytest.raises(AssertionError, match="nobody has"):
        pool.check_integrity()


def test_segments_out_of_order() -> None:
    session = Session(epoch=3)
    update = SessionUpdate(4, PromptUpdate(UpdateKind.EXTEND, (1,), 0))
    session.offer(update)
    session.check_integrity()
    session.resting = True
    with pytest.raises(AssertionError, match="rests"):
        session.check_integrity()
    session.resting, session.epoch = False, 4
    with pytest.raises(AssertionError, match="out of order"):
        session.check_integrity()


def test_a_session_that_outlives_its_request() -> None:
    scheduler = make_scheduler(ARScheduler)
    scheduler.open_session("gone", 0)
    with pytest.raises(AssertionError, match="outlived"):
        scheduler.check_integrity()
    scheduler._sessions.clear()


def test_a_cache_that_is_expected_for_nobody() -> None:
    options = StageOptions("stage", ConnectorSpec("inproc", "run"))
    scheduler = make_scheduler(ARScheduler, options=options, loads_caches=True)
    connector: Any = scheduler.connector
    connector.expect("gone", 3)
    with pytest.raises(AssertionError, match="expected"):
        scheduler.check_integrity()
    connector.forget("gone")
    scheduler.check_integrity()


def test_rows_that_everybody_has_seen() -> None:
    log = RowLog()
    log._pending.append(PendingRows(0, 2, None, {}))
    log.check_integrity()
    log._next = 2
    with pytest.raises(AssertionError, match="nobody needs"):
        log.check_integrity()


def test_a_chunk_that_nobody_tries_to_store_again() -> None:
    bench = Bench(stream=True)
    bench.faults.fail_puts()
    bench.open("a", "parts")
    bench.accept("a", 4, 1, 2, 3, 4)
    (outlet,) = bench.io._producers["a", 0].outlets
    assert outlet.unsent
    waiting = dict(bench.io._sender._waiting)
    bench.io._sender._waiting.clear()
    with pytest.raises(AssertionError, match="nobody tries again"):
        bench.io.check_integrity()
    bench.io._sender._waiting.update(waiting)
    bench.close()


def test_a_cache_on_the_device_of_nobody() -> None:
    caches = GivenCaches(torch.device("cpu"), lambda uid: None)
    caches.check_integrity({"a"})
    caches._ready["gone"] = (object(), [])  # type: ignore[assignment]
    with pytest.raises(AssertionError, match="on the device"):
        caches.check_integrity({"a"})


def test_more_requests_left_than_came() -> None:
    admission = Admission({})
    admission.enter(["talker"])
    admission.leave(["talker"])
    admission.check_integrity()
    admission.leave(["talker"])
    with pytest.raises(AssertionError, match="more requests have left"):
        admission.check_integrity()


def test_input_of_a_request_that_is_over() -> None:
    store = FakeStore("talker", {"k0"})
    store.delivered("a", chunk(0), 0)
    store.check_integrity({"a"})
    with pytest.raises(AssertionError, match="over"):
        store.check_integrity(set())
