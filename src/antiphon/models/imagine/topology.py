"""The `imagine` pipeline: a small thinker answers, and the KV cache of question and answer becomes
a picture, or several companions that share it.
"""

from __future__ import annotations

from antiphon.core.kv_handoff import KvTransfer
from antiphon.models.voice.topology import THINKER
from antiphon.pipeline.topology import Edge, EdgeMode, Entry, Stage, StageKind, Topology

_HERE = "antiphon.models.imagine"
_MIB = 1 << 20

DRAW = Stage(
    name="draw",
    kind=StageKind.GENERATION,
    model=f"{_HERE}.weights:draw_checkpoint",
    output="image",
    engine={
        "dtype": "float32",
        "max_model_len": 16,  # a prompt is one token
        "max_num_seqs": 16,
        "max_num_batched_tokens": 16,
        "kv_cache_memory_bytes": 1 * _MIB,  # it has no cache of its own
        "enforce_eager": True,
        "enable_chunked_prefill": False,
    },
    atomic_inputs=True,
)

TOPOLOGY = Topology(
    name="imagine",
    description="answers in text and a picture: SmolLM2-135M, a 2 M network that draws from its"
    " cache",
    stages=(THINKER, DRAW),
    edges=(
        Edge(
            name="cache",
            producer="thinker",
            consumer="draw",
            mode=EdgeMode.FULL,
            output_adapter="antiphon.models.kv_adapters:CacheOutput",
            input_adapter=f"{_HERE}.adapters:DrawInput",
            kv=KvTransfer("request_finished"),
            shared=True,
        ),
    ),
    entries=(
        Entry(name="chat", stage="thinker", adapter="antiphon.models.voice.entries:ChatEntry"),
    ),
)
