"""An ar stage that takes caches of another stage in, as its scheduler sees it."""

from __future__ import annotations

from typing import Any

import pytest
from sched_core import sampled
from sched_engine import Stage, plan
from sched_worker import Given
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.upstream.kv_connector import CacheLoads, StageCacheConnector
from factory import make_output

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])
CACHING = pytest.mark.parametrize("caching", [False, True], ids=["plain", "prefix cache"])
PROMPT = plan(*range(1, 41))


def given(cached: int = 39) -> Given:
    """A prompt of 40 tokens, of which the first came with their cache."""
    return Given(PROMPT, cached=cached)


def loads(stage: Stage) -> CacheLoads:
    """Those of the next step, in which something is scheduled."""
    while True:
        done = stage.step()
        assert done.scheduled is not None
        if done.scheduled.num_scheduled_tokens:
            orders = done.scheduled.kv_connector_metadata
            assert isinstance(orders, CacheLoads)
            return orders


@BOTH
@CACHING
@pytest.mark.parametrize("cached", [39, 32, 20, 1])
def test_what_is_cached_is_not_computed(cls: type[ARScheduler], caching: bool, cached: int) -> None:
    stage = Stage(cls, loads_caches=True, enable_prefix_caching=caching)
    stage.submit("a", gated=True, max_tokens=4)
    stage.deliver("a", given(cached))
    (load,) = loads(stage).loads
    assert (load.uid, load.first, load.stop) == ("a", 0, cached)
    assert len(load.block_ids[0]) == 3
    assert stage.scheduler.requests["a"].num_computed_tokens == 40
    stage.drain()
    assert stage.outcomes["a"].tokens == sampled("a", 40, 4)
    stage.check_empty()


@BOTH
def test_a_prefix_that_is_here_already_is_not_loaded(cls: type[ARScheduler]) -> None:
    """C95, C96: what is left of the cache is."""
    stage = Stage(cls, loads_caches=True, enable_prefix_caching=True)
    for uid in "ab":
        stage.submit(uid, gated=True, max_tokens=1)
    stage.deliver("a", given())
    stage.drain()
    stage.deliver("b", given())
    (load,) = loads(stage).loads
    assert (load.first, load.stop) == (32, 39)
    stage.drain()
    stage.check_empty()


@BOTH
def test_a_cache_that_came_without_a_connector_fails_its_request(cls: type[ARScheduler]) -> None:
    stage = Stage(cls)
    stage.submit("a", gated=True)
    stage.submit("b", gated=True, max_tokens=2)
    stage.deliver("a", given())
    stage.deliver("b", given(0))
    stage.drain()
    assert stage.error_code("a") == "kv_transfer"
    assert stage.outcomes["b"].tokens == sampled("b", 40, 2)
    stage.check_empty()


@BOTH
def test_an_aborted_request_expects_no_cache_any_more(cls: type[ARScheduler]) -> None:
    """C95: before anything is allocated for it. Its id may come again without one."""
    stage = Stage(cls, loads_caches=True, max_num_seqs=1)
    stage.submit("b", 20, max_tokens=50)
    stage.submit("a", gated=True)
    stage.deliver("a", given())
    stage.step()
    stage.step()
    request = stage.scheduler.requests["a"]
    connector = stage.scheduler.connector
    assert connector is not None
    assert connector.get_num_new_matched_tokens(request, 0) == (39, False)
    stage.abort("a")
    assert connector.get_num_new_matched_tokens(request, 0) == (0, False)
    stage.drain()
    stage.check_empty()


@BOTH
def test_a_preempted_request_computes_what_was_loaded(cls: type[ARScheduler]) -> None:
    """The worker has dropped it."""
    stage = Stage(cls, loads_caches=True)
    stage.submit("a", gated=True, max_tokens=9)
    stage.deliver("a", given())
    loads(stage)
    stage.until(lambda: len(stage.outcomes["a"].tokens) == 2)
    stage.scheduler.parking.preempt(stage.scheduler.requests["a"])
    orders = loads(stage)
    assert orders.loads == []
    stage.drain()
    assert stage.outcomes["a"].tokens == sampled("a", 40, 9)
    stage.check_empty()


@BOTH
def test_a_plan_that_is_refused_expects_no_cache(cls: type[ARScheduler]) -> None:
    stage = Stage(cls, loads_caches=True, max_model_len=32)
    request = stage.submit("a", gated=True)
    stage.deliver("a", given())
    stage.drain()
    assert stage.error_code("a") == "input_too_long"
    connector = stage.scheduler.connector
    assert connector is not None
    assert connector.get_num_new_matched_tokens(request, 0) == (0, False)
    stage.check_empty()


@BOTH
def test_gated_requests_let_a_stage_with_a_connector_sleep(cls: type[ARScheduler]) -> None:
    """C116: upstream takes every request that is in no queue for one to be cleaned up."""
    stage = Stage(cls, loads_caches=True)
    stage.submit("a", gated=True, max_tokens=2)
    stage.submit("b", max_tokens=2)
    stage.drain()
    assert stage.ends("b") == [FinishReason.LENGTH]
    assert not stage.has_work
    assert stage.scheduler.has_finished_requests()
    stage.deliver("a", given())
    assert stage.has_work
    stage.drain()
    assert stage.ends("a") == [FinishReason.LENGTH]
    stage.check_empty()


@BOTH
def test_starving_requests_let_a_stage_with_a_connector_sleep(cls: type[ARScheduler]) -> None:
    """One that is passed over counts as running, one that was preempted meanwhile as neither."""
    stage = Stage(cls, loads_caches=True)
    stage.submit("a", stream=True)
    stage.deliver("a", Given(plan(1, 2, 3), 1), end=False)
    stage.drain()
    assert stage.scheduler.parking.held
    assert not stage.has_work
    stage.scheduler.reset_prefix_cache(True)
    assert not stage.has_work
    stage.abort("a")
    assert stage.has_work
    stage.drain()
    stage.check_empty()


class _Keeps(StageCacheConnector):
    """A connector that needs the blocks of a request beyond its end."""

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return True, None


@BOTH
def test_a_request_whose_blocks_a_connector_keeps_is_cleaned_up(cls: type[ARScheduler]) -> None:
    """Upstream's rule holds beside requests that wait outside the queues."""
    stage = Stage(cls, loads_caches=True)
    scheduler = stage.scheduler
    scheduler.connector = _Keeps(
        scheduler.vllm_config, KVConnectorRole.SCHEDULER, scheduler.kv_cache_config
    )
    stage.submit("gated", gated=True)
    stage.submit("a", max_tokens=1)
    while not stage.finished:
        scheduled = scheduler.schedule()
        stage.finished += scheduled.finished_req_ids
        output = make_output(scheduled, scheduler=scheduler)
        scheduler.update_from_output(scheduled, output)
    assert scheduler.has_requests()
    scheduled = scheduler.schedule()
    output = make_output(scheduled, kv_connector_output=KVConnectorOutput(finished_sending={"a"}))
    scheduler.update_from_output(scheduled, output)
    assert not scheduler.has_requests()
    assert stage.free_blocks == stage.total_blocks
