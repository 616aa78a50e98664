"""A kv edge between two tiny stages: the second goes on where the first has stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from transformers import LlamaForCausalLM

from antiphon.core.kv_handoff import KvSettings, KvTransfer
from antiphon.core.options import ConnectorSpec, InEdge, OutEdge
from antiphon.stage.messages import Inspection
from antiphon.stage.spec import StageSpec
from tiny import VOCAB, tiny_spec
from tiny_streams import Chain

EDGE = "cache"
PREFILLED = KvTransfer("prefill_finished")
DEFAULTS = KvSettings()
_ADAPTERS = "antiphon.models.kv_adapters"


def producer_spec(
    name: str,
    model: str,
    transfer: KvTransfer = PREFILLED,
    settings: KvSettings = DEFAULTS,
    *,
    connector: ConnectorSpec | None = None,
    **over: Any,
) -> StageSpec:
    """A stage that hands its caches on; `over` are EngineArgs."""
    edge = OutEdge(
        EDGE, f"{_ADAPTERS}:CacheOutput", kv=transfer, kv_settings=settings, kv_blocks=True
    )
    return _shared(tiny_spec(name, model, "kv", outputs=(edge,), **over), connector)


def consumer_spec(
    name: str,
    model: str,
    *,
    adapter: str = "CacheAndTokenInput",
    connector: ConnectorSpec | None = None,
    **over: Any,
) -> StageSpec:
    """A stage that goes on with such caches."""
    edge = InEdge(EDGE, f"{_ADAPTERS}:{adapter}", kv=True)
    return _shared(tiny_spec(name, model, "kv", inputs=(edge,), **over), connector)


def _shared(spec: StageSpec, connector: ConnectorSpec | None) -> StageSpec:
    # All engines of this process have vLLM's connector, or none can.
    return msgspec.structs.replace(
        spec, kv_connector=True, connector=spec.connector if connector is None else connector
    )


def greedy(model: LlamaForCausalLM, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What transformers answers, without a cache."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(num_tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def prompt_of(index: int, length: int) -> list[int]:
    """A prompt of this length; others for other indices, from the first token on."""
    generator = torch.Generator().manual_seed(1000 * index + length)
    drawn = torch.randint(1, VOCAB - 1, (length,), generator=generator)
    return [int(token) for token in drawn]


def start(chain: Chain, uid: str, prompt: Sequence[int], tokens: int, **given: Any) -> None:
    """One request at both stages: `tokens` after the prompt, of which the first may write some."""
    sampling = {"max_tokens": tokens}
    chain.producer.submit(uid, prompt, edges=(EDGE,), sampling=sampling, **given)
    chain.consumer.submit(f"{uid}'", waits_for=EDGE, sampling=sampling)


def answered(chain: Chain, uid: str, tokens: int) -> list[int]:
    """What both stages wrote, one after the other: the first `tokens`."""
    return (chain.producer.tokens(uid) + chain.consumer.tokens(f"{uid}'"))[:tokens]


def assert_empty(chain: Chain) -> None:
    """Both stages are where they started, and the connector holds nothing."""
    for stage in (chain.producer, chain.consumer):
        stage.assert_empty()
        seen = stage.inspect()
        assert isinstance(seen, Inspection)
        assert seen.connector_entries == 0
    outflow = chain.producer.scheduler.coordinator.outflow
    assert all(edge.chunks == 0 for edge in outflow.statistics().values())
