"""The `split` pipeline: one stage computes a prompt's KV cache, another answers from it.

The decode stage computes the prompt's last token again and samples the first of the answer itself,
so that seeds, penalties and structured output are those of an undivided request. What the prefill
stage samples only tells that the prompt is done.
"""

from __future__ import annotations

from dataclasses import replace

from antiphon.core.kv_handoff import KvTransfer
from antiphon.models.voice.topology import THINKER
from antiphon.pipeline.topology import Edge, EdgeMode, Entry, Topology

_ENGINE = {**THINKER.engine, "enable_prefix_caching": True}

PREFILL = replace(
    THINKER,
    name="prefill",
    output=None,
    engine=_ENGINE,
    sampling={"temperature": 0.0, "max_tokens": 1, "detokenize": False},
)

DECODE = replace(THINKER, name="decode", engine=_ENGINE)

TOPOLOGY = Topology(
    name="split",
    description="answers in text: SmolLM2-135M, its prompts computed by one engine, its answers by"
    " another",
    stages=(PREFILL, DECODE),
    edges=(
        Edge(
            name="cache",
            producer="prefill",
            consumer="decode",
            mode=EdgeMode.FULL,
            output_adapter="antiphon.models.kv_adapters:CacheOutput",
            input_adapter="antiphon.models.kv_adapters:CacheInput",
            kv=KvTransfer("prefill_finished"),
        ),
    ),
    entries=(
        Entry(name="chat", stage="prefill", adapter="antiphon.models.voice.entries:ChatEntry"),
    ),
)
