"""The `voice` pipeline: hearing writes down what is said, a small thinker answers, a talker speaks
sentence by sentence, code2wav makes the sound.
"""

from __future__ import annotations

from antiphon.models.voice.limits import (
    CODE2WAV_CONTEXT,
    CONTEXT_CODES,
    HEARING_CONTEXT,
    HEARING_REPLY,
    TALKER_CONTEXT,
    THINKER_CONTEXT,
    THINKER_REPLY,
)
from antiphon.models.voice.vocabulary import EOS, SAMPLE_RATE
from antiphon.pipeline.topology import Ear, Edge, EdgeMode, Entry, Stage, StageKind, Topology

_HERE = "antiphon.models.voice"
_MIB = 1 << 20

HEARING = Stage(
    name="hearing",
    kind=StageKind.AR,
    model=f"{_HERE}.weights:hearing_checkpoint",
    output="transcript",
    engine={
        "dtype": "float32",
        "max_model_len": HEARING_CONTEXT,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 1536,  # one window is encoded in a step: 1500 positions
        "kv_cache_memory_bytes": 96 * _MIB,  # 12 KB per token in float32, 21 MB per window
        "enforce_eager": True,
        "enable_prefix_caching": False,  # vLLM has none for models with an encoder
        "limit_mm_per_prompt": {"audio": 1},
        "logits_processors": [f"{_HERE}.hearing_rules:HearingRules"],
    },
    sampling={
        "temperature": 0.0,
        "max_tokens": HEARING_REPLY,
        "detokenize": False,
        "extra_args": {"hearing_rules": True},
    },
    model_type="whisper",
)

THINKER = Stage(
    name="thinker",
    kind=StageKind.AR,
    model=f"{_HERE}.weights:thinker_checkpoint",
    output="text",
    engine={
        # In bfloat16 this small model was seen to lose the thread of plain questions.
        "dtype": "float32",
        "max_model_len": THINKER_CONTEXT,
        "max_num_seqs": 16,
        "max_num_batched_tokens": THINKER_CONTEXT,
        "kv_cache_memory_bytes": 256 * _MIB,  # 46 KB per token in float32
        "enforce_eager": True,
    },
    sampling={"temperature": 0.0, "max_tokens": THINKER_REPLY},
)

TALKER = Stage(
    name="talker",
    kind=StageKind.AR,
    model=f"{_HERE}.weights:talker_checkpoint",
    engine={
        "dtype": "float32",
        "max_model_len": TALKER_CONTEXT,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": 128 * _MIB,  # 10 KB per token in float32
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "logits_processors": [f"{_HERE}.grammar:TalkerGrammar"],
    },
    sampling={
        "temperature": 0.0,
        "max_tokens": TALKER_CONTEXT,
        "stop_token_ids": [EOS],
        "detokenize": False,
        "extra_args": {"talker_grammar": True},
    },
)

CODE2WAV = Stage(
    name="code2wav",
    kind=StageKind.GENERATION,
    model=f"{_HERE}.weights:code2wav_checkpoint",
    output="audio",
    engine={
        "runner": "pooling",
        "dtype": "float32",
        "max_model_len": CODE2WAV_CONTEXT,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 4096,
        "kv_cache_memory_bytes": 1 * _MIB,  # it has no attention
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
    },
    atomic_inputs=True,
)

TOPOLOGY = Topology(
    name="voice",
    description="hears, answers in text and speech: Whisper tiny.en, SmolLM2-135M, a 4 M talker,"
    " a 440 bit/s codec",
    stages=(HEARING, THINKER, TALKER, CODE2WAV),
    edges=(
        Edge(
            name="hear",
            producer="hearing",
            consumer="thinker",
            mode=EdgeMode.FULL,
            output_adapter=f"{_HERE}.hear_adapters:HearOutput",
            input_adapter=f"{_HERE}.hear_adapters:HearInput",
            join=True,
        ),
        Edge(
            name="speak",
            producer="thinker",
            consumer="talker",
            mode=EdgeMode.STREAM,
            output_adapter=f"{_HERE}.adapters:SpeakOutput",
            input_adapter=f"{_HERE}.adapters:SpeakInput",
            split=True,
        ),
        Edge(
            name="codes",
            producer="talker",
            consumer="code2wav",
            mode=EdgeMode.STREAM,
            output_adapter=f"{_HERE}.adapters:CodesOutput",
            input_adapter=f"{_HERE}.adapters:CodesInput",
            options={
                "initial_frames": 10,  # 0.25 s of sound, heard early
                "steady_frames": 40,
                "frame_ramp": 1.5,  # each plays while the next is made, on slow machines too
                "left_context": CONTEXT_CODES,
                "right_context": CONTEXT_CODES,
            },
        ),
    ),
    entries=(
        Entry(
            name="chat",
            stage="thinker",
            adapter=f"{_HERE}.entries:ChatEntry",
            inputs=("text", "audio"),
            ear=Ear("hearing", f"{_HERE}.entries:HeardChatEntry"),
        ),
        Entry(
            name="transcribe",
            stage="hearing",
            adapter=f"{_HERE}.entries:TranscribeEntry",
            inputs=("audio",),
            outputs=("transcript",),
            params=("language",),
        ),
        Entry(name="speech", stage="talker", adapter=f"{_HERE}.entries:SpeechEntry"),
    ),
    sample_rate=SAMPLE_RATE,
)
