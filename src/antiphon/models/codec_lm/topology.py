"""The `codec-lm` pipeline: a language model of text and codes speaks, a codec makes the sound.

Both checkpoints are the operator's. The language model is one of vLLM's own.
"""

from __future__ import annotations

from antiphon.models.codec_lm.codecs import DECODING
from antiphon.pipeline.topology import Edge, EdgeMode, Entry, Stage, StageKind, Topology

_HERE = "antiphon.models.codec_lm"
_MIB = 1 << 20
_LENGTH = 2048  # tokens of a request, text and codes; Llasa speaks 50 codes a second

LM = Stage(
    name="lm",
    kind=StageKind.AR,
    model="antiphon.models.checkpoint:given",
    engine={
        "max_model_len": _LENGTH,
        "kv_cache_memory_bytes": 512 * _MIB,
        "skip_tokenizer_init": True,
        "logits_processors": [f"{_HERE}.speech_only:SpeechOnly"],
    },
    # As Llasa's model card samples; the tokens that end a speech are the checkpoint's.
    sampling={"temperature": 0.8, "max_tokens": _LENGTH, "detokenize": False},
    facts=f"{_HERE}.tokens:checkpoint_facts",
)

CODEC = Stage(
    name="codec",
    kind=StageKind.GENERATION,
    model="antiphon.models.checkpoint:given",
    output="audio",
    engine={
        "runner": "pooling",
        "dtype": "float32",  # the decoder is small, and what it loses in bfloat16 is heard
        "max_model_len": _LENGTH,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2 * _LENGTH,
        "kv_cache_memory_bytes": 1 * _MIB,  # it has no cache
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
    },
    atomic_inputs=True,
    config=f"{_HERE}.configs:codec_config",
    weights=tuple(f"{part}." for part in DECODING),
    facts=f"{_HERE}.codecs:checkpoint_facts",
)

TOPOLOGY = Topology(
    name="codec-lm",
    description="speaks a text: a language model that writes a codec's codes (Llasa), the codec",
    stages=(LM, CODEC),
    edges=(
        Edge(
            name="codes",
            producer="lm",
            consumer="codec",
            mode=EdgeMode.FULL,
            output_adapter=f"{_HERE}.adapters:CodesOutput",
            input_adapter=f"{_HERE}.adapters:CodesInput",
            options={
                "initial_frames": 25,
                "steady_frames": 50,
                "frame_ramp": 1.5,
                # These codecs attend to all codes they are given, so a chunk sounds like the whole
                # speech only nearly. 13 is how far their convolutions and the overlap of their
                # frames reach; more on the left costs no delay.
                "left_context": 50,
                "right_context": 13,
            },
        ),
    ),
    entries=(Entry(name="speech", stage="lm", adapter=f"{_HERE}.entries:SpeechEntry"),),
    sample_rate=16_000,  # of XCodec2; the codec's checkpoint has the last word
)
