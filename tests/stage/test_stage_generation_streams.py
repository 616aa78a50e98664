"""A generation stage that is fed chunk by chunk by an autoregressive one, both real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_vocoder
from antiphon.core.budget import EdgeLimits
from antiphon.core.options import InEdge, OutEdge
from antiphon.pipeline.topology import StageKind
from antiphon.stage.messages import Abort, Step
from engine_pool import EnginePool
from tiny import Driven, tiny_spec
from tiny_streams import Chain

TOKENS = 20


@pytest.fixture(scope="module")
def talker(engines: EnginePool, model_a: str) -> Driven:
    edges = (
        OutEdge("codes", "tiny_adapters:PartsOut", stream=True, limits=EdgeLimits(4)),
        OutEdge("whole", "tiny_adapters:TokensOut"),
    )
    return engines.stage(tiny_spec("talker", model_a, "generation_streams", outputs=edges))


def vocoder_spec(name: str, model: str, **fields: Any) -> Any:
    import msgspec

    edges = (
        InEdge("codes", "tiny_vocoder:IdsIn", stream=True),
        InEdge("whole", "tiny_vocoder:IdsIn"),
    )
    spec = tiny_spec(
        name,
        model,
        "generation_streams",
        kind=StageKind.GENERATION,
        inputs=edges,
        runner="pooling",
        load_format="dummy",
        enable_chunked_prefill=False,
        kv_cache_memory_bytes=1 << 20,
    )
    return msgspec.structs.replace(spec, **fields)


@pytest.fixture(scope="module")
def model_v(tmp_path_factory: pytest.TempPathFactory) -> str:
    tiny_vocoder.register()
    folder: Path = tmp_path_factory.mktemp("vocoder")
    return tiny_vocoder.vocoder_model(folder)


@pytest.fixture(scope="module")
def vocoder(engines: EnginePool, model_v: str) -> Driven:
    return engines.stage(vocoder_spec("vocoder", model_v))


@pytest.fixture(scope="module")
def windowed(engines: EnginePool, model_v: str) -> Driven:
    """Serves two streams at a time."""
    return engines.stage(vocoder_spec("windowed", model_v, active_streams=2))


def fresh(talker: Driven, vocoder: Driven) -> Chain:
    talker.clear()
    vocoder.clear()
    return Chain(talker, vocoder)


def start(
    chain: Chain, uid: str, *, edge: str = "codes", tokens: int = TOKENS, **params: Any
) -> None:
    chain.producer.submit(
        uid,
        [3 + ord(uid[-1]) % 50, 17, 80],
        edges=(edge,),
        params={k: v for k, v in params.items() if k in ("each", "rest")},
        sampling={"max_tokens": tokens},
    )
    chain.consumer.submit(f"{uid}'", waits_for=edge, params={"owes": params.get("owes", False)})


def heard(chain: Chain, uid: str) -> list[float]:
    """All samples of a request, in the order of the steps."""
    samples: list[float] = []
    for event, frames in zip(chain.consumer.events, chain.consumer.frames, strict=True):
        if isinstance(event, Step):
            for out in event.outputs:
                if out.uid == f"{uid}'" and out.tensor is not None:
                    samples += np.frombuffer(frames[out.tensor.frame], np.float32).tolist()
    return samples


def assert_empty(chain: Chain) -> None:
    for stage in (chain.producer, chain.consumer):
        stage.run()
        seen = stage.inspect()
        assert seen.error is None
        assert (seen.requests, seen.gated, seen.worker_requests) == (0, 0, 0)
        assert seen.connector_entries == 0


@pytest.mark.parametrize("owes", [False, True])
@pytest.mark.parametrize("batch", [1, 8])
def test_chunks_sound_like_the_whole(
    talker: Driven, vocoder: Driven, batch: int, owes: bool
) -> None:
    """C18, C20: sample-exact, with the sample that the model owes at the end exactly once."""
    chain = fresh(talker, vocoder)
    uids = [f"c{index}" for index in range(batch)]
    for uid in uids:
        start(chain, uid, owes=owes)
    chain.run()
    for uid in uids:
        assert heard(chain, uid) == tiny_vocoder.decoded(talker.tokens(uid), owes=owes)
        assert [o.finish for o in vocoder.endings(f"{uid}'")] == ["stop"]
    assert_empty(chain)


@pytest.mark.parametrize("owes", [False, True])
def test_a_full_edge_sounds_the_same(talker: Driven, vocoder: Driven, owes: bool) -> None:
    """C22: the whole payload at once, and its end with it."""
    chain = fresh(talker, vocoder)
    start(chain, "a", edge="whole", owes=owes)
    chain.run()
    assert not [out.error for out in vocoder.outputs("a'") if out.error is not None]
    assert heard(chain, "a") == tiny_vocoder.decoded(talker.tokens("a"), owes=owes)
    assert_empty(chain)


def test_one_token_is_one_chunk_and_an_end(talker: Driven, vocoder: Driven) -> None:
    """C20: an answer shorter than any chunk."""
    chain = fresh(talker, vocoder)
    start(chain, "a", tokens=1, owes=True)
    chain.run()
    assert heard(chain, "a") == tiny_vocoder.decoded(talker.tokens("a"), owes=True)
    assert_empty(chain)


def test_a_slow_vocoder_holds_its_talker_up(talker: Driven, vocoder: Driven) -> None:
    chain = fresh(talker, vocoder)
    start(chain, "a")
    talker.run()
    assert not talker.host.has_work
    assert talker.inspect().connector_entries <= 5  # the budget, and what was in its last step
    chain.run()
    assert heard(chain, "a") == tiny_vocoder.decoded(talker.tokens("a"))
    assert_empty(chain)


def test_streams_take_turns(talker: Driven, vocoder: Driven) -> None:
    """C76: nobody's chunks wait behind all of another's."""
    chain = fresh(talker, vocoder)
    for uid in "abc":
        start(chain, uid, tokens=8)
    order = []
    talker.run()
    chain.forward()
    for _ in range(200):
        if not vocoder.host.has_work:
            break
        vocoder.host.step()
    for event in vocoder.events:
        if isinstance(event, Step):
            order += [out.uid for out in event.outputs if out.tensor is not None]
    counts = dict.fromkeys(("a'", "b'", "c'"), 0)
    for uid in order:
        counts[uid] += 1
        assert max(counts.values()) - min(counts.values()) <= 1
    chain.run()
    assert_empty(chain)


def test_a_window_of_streams_serves_all_of_them(talker: Driven, windowed: Driven) -> None:
    """C62, C77: two at a time; slots come back at the end, and on abort."""
    chain = fresh(talker, windowed)
    uids = [f"w{index}" for index in range(7)]
    for uid in uids:
        start(chain, uid, tokens=8)
    for _ in range(6):
        chain.forward()
        talker.host.step()
        windowed.host.step()
    begun = {o.uid for e in windowed.events if isinstance(e, Step) for o in e.outputs if o.tensor}
    assert len(begun) == 2
    for stage in (talker, windowed):
        stage.host.handle(Abort(["w0", "w0'"], 1))
    chain.run()
    for uid in uids[1:]:
        assert heard(chain, uid) == tiny_vocoder.decoded(talker.tokens(uid))
    assert_empty(chain)


def test_a_step_that_fails_ends_its_streams_and_no_other(talker: Driven, vocoder: Driven) -> None:
    """C63: what the model raises is an error of the requests in the step."""
    chain = fresh(talker, vocoder)
    start(chain, "a")
    chain.run()
    ids = talker.tokens("a")
    chain = fresh(talker, vocoder)
    vocoder.submit("bad'", [tiny_vocoder.POISON])
    vocoder.run()
    (end,) = vocoder.endings("bad'")
    assert end.error is not None
    assert "fell over" in end.error.message
    start(chain, "a")
    chain.run()
    assert heard(chain, "a") == tiny_vocoder.decoded(ids)
    assert_empty(chain)
