"""A very long stream through a slow consumer: what is under way is bounded, memory stays flat."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tiny_vocoder
from antiphon.core.budget import EdgeLimits
from antiphon.core.options import InEdge, OutEdge
from antiphon.pipeline.topology import StageKind
from antiphon.stage.spec import StageSpec
from engine_pool import EnginePool
from tiny import BLOCK_BYTES, Driven, tiny_model, tiny_spec
from tiny_streams import Chain

STEPS = 10_000
LIMIT = 4  # chunks
FLAT = 4 << 20  # bytes that 8,000 steps may add: token ids, which are the request's own


def unchecked_spec(*args: Any, **given: Any) -> StageSpec:
    """A stage that does not check its stores after each of so many steps."""
    return msgspec.structs.replace(tiny_spec(*args, **given), check_every_step=False)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_steps_through_a_slow_consumer(
    engines: EnginePool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """C24, C25, C50: nothing on the way grows with the length of the stream."""
    tiny_vocoder.register()
    length = STEPS + 100
    model = tiny_model(tmp_path_factory.mktemp("long"), seed=1, max_position_embeddings=2 * length)
    out = OutEdge("codes", "tiny_adapters:PartsOut", stream=True, limits=EdgeLimits(LIMIT))
    talker: Driven = engines.stage(
        unchecked_spec(
            "long-talker",
            model,
            "long_stream",
            outputs=(out,),
            max_model_len=length,
            max_num_batched_tokens=256,
            kv_cache_memory_bytes=(length // 32 + 8) * BLOCK_BYTES,
        )
    )
    vocoder: Driven = engines.stage(
        unchecked_spec(
            "long-vocoder",
            tiny_vocoder.vocoder_model(tmp_path_factory.mktemp("long-vocoder")),
            "long_stream",
            kind=StageKind.GENERATION,
            inputs=(InEdge("codes", "tiny_vocoder:IdsIn", stream=True),),
            runner="pooling",
            load_format="dummy",
            enable_chunked_prefill=False,
            kv_cache_memory_bytes=1 << 20,
        )
    )
    chain = Chain(talker, vocoder)
    talker.submit("a", [1, 2, 3], edges=("codes",), sampling={"max_tokens": STEPS})
    vocoder.submit("a'", waits_for="codes")
    said = 0
    early: int | None = None
    while talker.scheduler.requests or vocoder.scheduler.requests:
        while talker.host.has_work:  # as far as its budget lets it
            talker.host.step()
        chain.forward()
        if vocoder.host.has_work:
            vocoder.host.step()
        chain.forward()
        said += sum(len(o.token_ids) for o in talker.outputs("a"))
        talker.clear()
        vocoder.clear()
        chain.forget()
        if early is None and said >= STEPS // 5:
            gc.collect()
            early = resident()
    assert said == STEPS
    assert early is not None
    gc.collect()
    grown = resident() - early
    print(f"{grown / 1024:.0f} KiB in {STEPS - STEPS // 5} steps")
    assert grown < FLAT
    peak = talker.scheduler.coordinator.outflow.statistics()["codes"].peak_chunks
    assert peak <= LIMIT + 1
    talker.assert_empty()
