"""The `qwen3-omni` pipeline: Qwen3-Omni's thinker hears and writes, its talker says the answer in
frames of codes while it is written, its code2wav makes the sound. One checkpoint serves all three.

Sizes suit Qwen3-Omni-30B-A3B; sampling is what transformers' `generate` does by default.
"""

from __future__ import annotations

from antiphon.core.budget import EdgeLimits
from antiphon.models.qwen3_omni.voices import SPEAKER
from antiphon.pipeline.topology import Edge, EdgeMode, Entry, Stage, StageKind, Topology

_HERE = "antiphon.models.qwen3_omni"
_GIVEN = "antiphon.models.checkpoint:given"
_MODEL_TYPE = "qwen3_omni_moe"
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
        "kv_cache_memory_bytes": 4096 * _MIB,  # 96 KB per token in bfloat16
    },
    sampling={"temperature": 0.0, "max_tokens": 1024},
    config=f"{_HERE}.configs:thinker_config",
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
        "kv_cache_memory_bytes": 1024 * _MIB,  # 20 KB per token in bfloat16
        "enable_prompt_embeds": True,
        # A block's hash knows a frame's first code only, and the frame's text not at all.
        "enable_prefix_caching": False,
    },
    sampling={
        "temperature": 0.9,
        "top_k": 50,
        "repetition_penalty": 1.05,
        "max_tokens": 4096,
        "detokenize": False,
    },
    config=f"{_HERE}.configs:talker_config",
    model_type=_MODEL_TYPE,
    weights=("talker.", "thinker.model.embed_tokens."),
)

CODE2WAV = Stage(
    name="code2wav",
    kind=StageKind.GENERATION,
    model=_GIVEN,
    output="audio",
    engine={
        "max_model_len": 16_384,  # 1024 frames of 16 codes: 82 s of speech, if all comes at once
        "max_num_seqs": 16,
        "max_num_batched_tokens": 16_384,
        "kv_cache_memory_bytes": 1 * _MIB,  # it has no cache
        "enforce_eager": True,
        "enable_chunked_prefill": False,
    },
    atomic_inputs=True,
    config=f"{_HERE}.configs:code2wav_config",
    model_type=_MODEL_TYPE,
    weights=("code2wav.",),
)

TOPOLOGY = Topology(
    name="qwen3-omni",
    description="answers in text and speech with a Qwen3-Omni-MoE checkpoint of yours",
    stages=(THINKER, TALKER, CODE2WAV),
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
            consumer="code2wav",
            mode=EdgeMode.STREAM,
            output_adapter=f"{_HERE}.codes:CodesOutput",
            input_adapter=f"{_HERE}.codes:CodesInput",
            options={
                "initial_frames": 4,  # 0.3 s of sound, heard early
                "steady_frames": 25,
                "frame_ramp": 2.0,  # each plays while the next is made
                "left_context": 25,  # transformers' own `chunked_decode` takes as many
            },
        ),
    ),
    entries=(
        Entry(
            name="chat",
            stage="thinker",
            adapter=f"{_HERE}.entries:ChatEntry",
            params=(SPEAKER,),
            inputs=("text", "audio"),
        ),
    ),
    sample_rate=24_000,
)
