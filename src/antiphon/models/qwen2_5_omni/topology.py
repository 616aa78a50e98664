"""The `qwen2.5-omni` pipeline: Qwen2.5-Omni's thinker hears and writes, its talker says the answer
in codes while it is written, its token2wav makes the sound of them all. One checkpoint serves all
three.

Sizes suit Qwen2.5-Omni-7B; sampling is what transformers' `generate` does by default.
"""

from __future__ import annotations

from antiphon.core.budget import EdgeLimits
from antiphon.models.qwen2_5_omni.params import SEED, SPEAKER
from antiphon.pipeline.topology import Edge, EdgeMode, Entry, Stage, StageKind, Topology

_HERE = "antiphon.models.qwen2_5_omni"
_GIVEN = "antiphon.models.checkpoint:given"
_MODEL_TYPE = "qwen2_5_omni"
_MIB = 1 << 20

THINKER = Stage(
    name="thinker",
    kind=StageKind.AR,
    model=_GIVEN,
    output="text",
    engine={
        "max_model_len": 16_384,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 4096,
        "kv_cache_memory_bytes": 4096 * _MIB,
    },
    sampling={"temperature": 0.0, "max_tokens": 1024},
    model_type=_MODEL_TYPE,
    weights=("thinker.",),
)

TALKER = Stage(
    name="talker",
    kind=StageKind.AR,
    model=_GIVEN,
    engine={
        "max_model_len": 16_384,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 4096,
        "kv_cache_memory_bytes": 1024 * _MIB,
        "enable_prompt_embeds": True,
        # A block's hash knows the codes, and not the text that they were computed with.
        "enable_prefix_caching": False,
    },
    sampling={
        "temperature": 0.9,
        "top_k": 40,
        "top_p": 0.8,
        "repetition_penalty": 1.05,
        "max_tokens": 4096,
        "detokenize": False,
    },
    config=f"{_HERE}.configs:talker_config",
    model_type=_MODEL_TYPE,
    weights=("talker.", "thinker.model.embed_tokens."),
    facts=f"{_HERE}.facts:talker_facts",
)

TOKEN2WAV = Stage(
    name="token2wav",
    kind=StageKind.GENERATION,
    model=_GIVEN,
    output="audio",
    engine={
        "dtype": "float32",  # as transformers runs it, whatever the dtype of the others
        "max_num_seqs": 16,
        "max_num_batched_tokens": 16_384,  # as many codes as the vocoder decodes at once
        "kv_cache_memory_bytes": 1 * _MIB,  # it has no cache
        "enforce_eager": True,
        "enable_chunked_prefill": False,
    },
    atomic_inputs=True,
    config=f"{_HERE}.configs:token2wav_config",
    model_type=_MODEL_TYPE,
    weights=("token2wav.",),
)

TOPOLOGY = Topology(
    name="qwen2.5-omni",
    description="answers in text and speech with a Qwen2.5-Omni checkpoint of yours",
    stages=(THINKER, TALKER, TOKEN2WAV),
    edges=(
        Edge(
            name="speak",
            producer="thinker",
            consumer="talker",
            mode=EdgeMode.STREAM,
            output_adapter=f"{_HERE}.speak_output:SpeakOutput",
            input_adapter=f"{_HERE}.speak_input:SpeakInput",
            # Text is not held back by speech: a chunk is a token's row, and a reply has 1024.
            limits=EdgeLimits(request_chunks=1024, total_chunks=16_384),
        ),
        Edge(
            name="codes",
            producer="talker",
            consumer="token2wav",
            mode=EdgeMode.FULL,
            streams=False,  # the vocoder looks at all codes of a speech
            output_adapter=f"{_HERE}.codes:CodesOutput",
            input_adapter=f"{_HERE}.codes:CodesInput",
            options={SEED: 0},
        ),
    ),
    entries=(
        Entry(
            name="chat",
            stage="thinker",
            adapter=f"{_HERE}.entries:ChatEntry",
            inputs=("text", "audio"),
            params=(SPEAKER, SEED),
        ),
    ),
    sample_rate=24_000,
)
