"""The `qwen3-tts` pipeline: a talker reads a text in frames of codes, a codec makes the sound. One
checkpoint serves both.

Sizes suit Qwen3-TTS-12Hz-1.7B; sampling is what the official package does by default.
"""

from __future__ import annotations

from antiphon.models.qwen3_tts.prompt import INSTRUCT, LANGUAGE, NON_STREAMING, SPEAKER
from antiphon.pipeline.topology import Edge, EdgeMode, Entry, Stage, StageKind, Topology

_HERE = "antiphon.models.qwen3_tts"
_GIVEN = "antiphon.models.checkpoint:given"
_MODEL_TYPE = "qwen3_tts"
_MIB = 1 << 20

TALKER = Stage(
    name="talker",
    kind=StageKind.AR,
    model=_GIVEN,
    engine={
        "max_model_len": 4096,  # 12.5 frames are a second of speech
        "max_num_seqs": 16,
        "max_num_batched_tokens": 4096,
        "kv_cache_memory_bytes": 2048 * _MIB,  # 112 KB per token in bfloat16
        "enable_prompt_embeds": True,
        # A block's hash knows a frame's first code only, and the frame's text not at all.
        "enable_prefix_caching": False,
    },
    sampling={
        "temperature": 0.9,
        "top_k": 50,
        "top_p": 1.0,
        "repetition_penalty": 1.05,
        "min_tokens": 2,
        "max_tokens": 2048,
        "detokenize": False,
        "extra_args": {"code_temperature": 0.9, "code_top_k": 50, "code_top_p": 1.0},
    },
    config=f"{_HERE}.configs:talker_config",
    model_type=_MODEL_TYPE,
    weights=("talker.",),
    prompt_adapter=f"{_HERE}.prompt_input:PromptInput",
    facts=f"{_HERE}.settings:talker_facts",
)

CODE2WAV = Stage(
    name="code2wav",
    kind=StageKind.GENERATION,
    model=_GIVEN,
    output="audio",
    engine={
        "max_model_len": 32_768,  # 2048 frames of 16 codes: 164 s, if all comes at once
        "max_num_seqs": 16,
        "max_num_batched_tokens": 32_768,
        "kv_cache_memory_bytes": 1 * _MIB,  # it has no cache
        "enforce_eager": True,
        "enable_chunked_prefill": False,
    },
    atomic_inputs=True,
    config=f"{_HERE}.configs:code2wav_config",
    model_type=_MODEL_TYPE,
    facts=f"{_HERE}.settings:codec_facts",
)

TOPOLOGY = Topology(
    name="qwen3-tts",
    description="speaks a text with a Qwen3-TTS (12 Hz) checkpoint of yours",
    stages=(TALKER, CODE2WAV),
    edges=(
        Edge(
            name="codes",
            producer="talker",
            consumer="code2wav",
            mode=EdgeMode.STREAM,
            output_adapter=f"{_HERE}.codes:CodesOutput",
            input_adapter=f"{_HERE}.codes:CodesInput",
            options={
                "initial_frames": 1,  # 80 ms of sound, heard early
                "steady_frames": 25,
                "frame_ramp": 2.0,  # each plays while the next is made
                "left_context": 72,  # the published codec's sliding window
            },
        ),
    ),
    entries=(
        Entry(
            name="speech",
            stage="talker",
            adapter=f"{_HERE}.entries:SpeechEntry",
            params=(SPEAKER, LANGUAGE, INSTRUCT, NON_STREAMING),
        ),
    ),
    sample_rate=24_000,
)
