"""Writes tests/fixtures/qwen3_tts: a tiny Qwen3-TTS checkpoint and what official code makes of it.

All weights are random numbers made here; no upstream weights are involved. The official code
(`qwen-tts` 0.1.1, Apache-2.0) wants another transformers than Antiphon, so it runs in a folder of
its own, with the torch of the repository's environment:

    pip install --no-deps --target DIR \\
        qwen-tts==0.1.1 transformers==4.57.3 tokenizers==0.22.1 huggingface-hub==0.36.2
    PYTHONPATH=DIR .venv/bin/python scripts/qwen3_tts_fixtures.py tests/fixtures/qwen3_tts

It uses the official model and codec classes, by their modules: the package's own `__init__` also
imports audio libraries for voice cloning and the 25 Hz codec, which nothing here needs.

The folder then holds `checkpoint/`, laid out like the published ones (config.json,
model.safetensors, `speech_tokenizer/` with the codec, tokenizer files), `cases.json` (requests,
versions) and `references.safetensors` (by case: prompt embeddings, rows of the text that follows,
codes, waveform).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GROUPS = 4
CODEBOOK = 64
VOCAB = 1024 + CODEBOOK  # the last 1024 ids of the vocabulary are special
IM_START, IM_END, TTS_PAD, TTS_BOS, TTS_EOS = 500, 501, 502, 503, 504
VERSIONS = ("qwen-tts", "transformers", "tokenizers", "torch")
MAX_FRAMES = 24
LONG_FRAMES = 330
EOS_SCALE = 2.5  # of the end's weights: some utterances end before the limit

ROPE = {"rope_type": "default", "mrope_section": [6, 5, 5], "interleaved": True}
TALKER: dict[str, Any] = {
    "vocab_size": VOCAB,
    "text_vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "text_hidden_size": 96,
    "num_code_groups": GROUPS,
    "rope_theta": 10000.0,
    "rope_scaling": ROPE,
    "max_position_embeddings": 4096,
    "codec_pad_id": CODEBOOK + 4,
    "codec_bos_id": CODEBOOK + 5,
    "codec_eos_token_id": CODEBOOK + 6,
    "codec_nothink_id": CODEBOOK + 7,
    "codec_think_bos_id": CODEBOOK + 8,
    "codec_think_eos_id": CODEBOOK + 9,
    "codec_think_id": CODEBOOK + 10,
    "spk_id": {"vivian": CODEBOOK + 20, "eric": CODEBOOK + 21},
    "spk_is_dialect": {"vivian": False, "eric": "sichuan_dialect"},
    "codec_language_id": {
        "english": CODEBOOK + 30,
        "chinese": CODEBOOK + 31,
        "sichuan_dialect": CODEBOOK + 32,
    },
    "code_predictor_config": {
        "vocab_size": CODEBOOK,
        "hidden_size": 32,  # other than the talker's: small_to_mtp_projection has weights
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_code_groups": GROUPS,
    },
}
DECODER: dict[str, Any] = {
    "codebook_size": CODEBOOK,
    "codebook_dim": 32,
    "hidden_size": 32,
    "latent_dim": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 8,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_quantizers": GROUPS,
    "num_semantic_quantizers": 1,
    "upsample_rates": [4, 3],
    "upsampling_ratios": [2, 2],
    "decoder_dim": 32,
    "layer_scale_initial_scale": 0.5,
}
UPSAMPLE = 4 * 3 * 2 * 2
ENCODER: dict[str, Any] = {  # only there to be skipped: the smallest that the official code builds
    "hidden_size": 16,
    "num_filters": 2,
    "upsample_groups": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "codebook_size": 8,
    "codebook_dim": 8,
    "vector_quantization_hidden_dimension": 8,
    "num_quantizers": GROUPS,
    "upsampling_ratios": [2, 2],
}

# Text ids, or a text that the tokenizer makes them of; each case is spoken with streaming text and
# without.
TEXTS: dict[str, list[int] | str] = {
    "written": "Hi there.",
    "short": [40],
    "pair": [41, 42],
    "sentence": [40, 41, 42, 43, 44, 45, 46],
    "early": [60],  # streaming, it would end at once if it was not kept from it
    "long": [(17 * i) % 200 + 20 for i in range(19)],
}
INSTRUCTION = [IM_START, 13, 198, 60, 61, 62, IM_END, 198]
VOICES: dict[str, dict[str, Any]] = {
    "english": {"speaker": "Vivian", "language": "English"},
    "auto": {"speaker": "vivian", "language": "Auto"},
    "dialect": {"speaker": "eric", "language": "Chinese"},
    "design": {"speaker": "", "language": "english", "instruct_ids": INSTRUCTION},
    "told": {"speaker": "vivian", "language": "English", "instruct": "be calm"},
    "penalised": {"speaker": "vivian", "language": "English", "repetition_penalty": 1.3},
    "instructed": {"speaker": "vivian", "language": "chinese", "instruct_ids": INSTRUCTION},
}
CASES = (
    ("short", "english"),
    ("pair", "auto"),
    ("sentence", "english"),
    ("sentence", "auto"),
    ("sentence", "dialect"),
    ("sentence", "design"),
    ("sentence", "penalised"),
    ("early", "english"),
    ("long", "instructed"),
    ("long", "english"),
    ("written", "english"),
    ("written", "told"),
)


def official() -> tuple[types.ModuleType, types.ModuleType]:
    """The official modules of the model and of the 12 Hz codec, without the package's own init."""
    spec = importlib.util.find_spec("qwen_tts")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("qwen-tts is not installed; see this script's docstring")
    root = Path(next(iter(spec.submodule_search_locations)))
    for name in ("qwen_tts", "qwen_tts.core", "qwen_tts.inference"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    tokenizer = types.ModuleType("qwen_tts.inference.qwen3_tts_tokenizer")
    vars(tokenizer)["Qwen3TTSTokenizer"] = object
    sys.modules[tokenizer.__name__] = tokenizer
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # nothing here has a picture
    importlib.import_module("transformers")  # looks for librosa, before there is a stand-in
    for name in ("librosa", "librosa.filters"):  # mel spectrograms, for voice cloning
        module = types.ModuleType(name)
        vars(module)["mel"] = None
        sys.modules[name] = module
    model = importlib.import_module("qwen_tts.core.models.modeling_qwen3_tts")
    codec = importlib.import_module("qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2")
    return model, codec


def build_model(module: types.ModuleType) -> Any:
    """The talker with weights of O(0.2), so that everything that conditions it can be seen."""
    import torch

    config = module.Qwen3TTSConfig(
        tts_model_type="custom_voice",
        tokenizer_type="qwen3_tts_tokenizer_12hz",
        tts_model_size="tiny",
        im_start_token_id=IM_START,
        im_end_token_id=IM_END,
        tts_pad_token_id=TTS_PAD,
        tts_bos_token_id=TTS_BOS,
        tts_eos_token_id=TTS_EOS,
        assistant_token_id=12,
        speaker_encoder_config={},
        talker_config=json.loads(json.dumps(TALKER)),
    )
    model = module.Qwen3TTSForConditionalGeneration(config).float().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm" in name else 0.2 * noise)
        model.talker.codec_head.weight[config.talker_config.codec_eos_token_id] *= EOS_SCALE
    return model


def build_codec(module: types.ModuleType) -> Any:
    import torch

    config = module.Qwen3TTSTokenizerV2Config(
        encoder_config=ENCODER,
        decoder_config=json.loads(json.dumps(DECODER)),
        encoder_valid_num_quantizers=GROUPS,
        decode_upsample_rate=UPSAMPLE,
        encode_downsample_rate=UPSAMPLE,
    )
    codec = module.Qwen3TTSTokenizerV2Model(config).float().eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in codec.decoder.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.1 * noise)
            elif "embedding_sum" in name:
                parameter.copy_(noise)
            elif "cluster_usage" in name:
                parameter.copy_(1 + noise.abs())
            elif "scale" in name or "gamma" in name:
                parameter.copy_(0.5 + 0.1 * noise)
            else:
                parameter.copy_(0.08 * noise)
    return codec


class Watch:
    """What the official `generate` hands its talker: prompt embeddings and the text behind them."""

    def __init__(self, talker: Any) -> None:
        self.given: dict[str, Any] = {}
        inner = talker.generate

        def generate(**kwargs: Any) -> Any:
            self.given = kwargs
            return inner(**kwargs)

        talker.generate = generate


@dataclass
class Oracle:
    """What makes the references."""

    model: Any
    codec: Any
    watch: Watch
    reader: Reader


class Reader:
    """The official templates (`Qwen3TTSModel._build_assistant_text`) with the small tokenizer."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def ids(self, text: list[int] | str) -> list[int]:
        if not isinstance(text, str):
            return [IM_START, 12, 198, *text, IM_END, 198, IM_START, 12, 198]
        return self._encode(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n")

    def instruction(self, given: dict[str, Any]) -> list[int] | None:
        if "instruct" in given:
            return self._encode(f"<|im_start|>user\n{given['instruct']}<|im_end|>\n")
        return given.get("instruct_ids")

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def run_case(oracle: Oracle, case: tuple[str, str], streaming: bool) -> Any:
    """One utterance → (its request, its tensors)."""
    import torch

    model, codec, watch, reader = oracle.model, oracle.codec, oracle.watch, oracle.reader
    text, given = TEXTS[case[0]], VOICES[case[1]]
    ids, instruct = reader.ids(text), reader.instruction(given)
    codes, _ = model.generate(
        input_ids=[torch.tensor([ids])],
        instruct_ids=[torch.tensor([instruct]) if instruct else None],
        languages=[given["language"]],
        speakers=[given["speaker"]],
        non_streaming_mode=not streaming,
        max_new_tokens=MAX_FRAMES + 1,  # the last token's frame is never made
        do_sample=False,
        subtalker_dosample=False,
        repetition_penalty=given.get("repetition_penalty", 1.0),
    )
    ended = len(codes[0]) < MAX_FRAMES
    wave = codec.decode(codes[0][None], return_dict=True).audio_values[0]
    request = {
        "ids": ids,
        "streaming": streaming,
        "ended": ended,
        **({"text": text} if isinstance(text, str) else {}),
        **given,
        **({} if instruct is None else {"instruct_ids": instruct}),
    }
    tensors = {
        "prompt": watch.given["inputs_embeds"][0],
        "trailing": watch.given["trailing_text_hidden"][0],
        "codes": codes[0].to(torch.int32),
        "wave": wave,
    }
    return request, tensors


def run_codec(codec: Any) -> dict[str, Any]:
    """Random frames, more than the official code decodes at once → codes, waveform."""
    import torch

    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(CODEBOOK, (LONG_FRAMES, GROUPS), generator=generator)
    wave = codec.decode(codes[None], return_dict=True).audio_values[0]
    return {"codec.codes": codes.to(torch.int32), "codec.wave": wave}


def write_tokenizer(folder: Path) -> None:
    """Byte-level; the words of the template and the special tokens have fixed ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words = {"assistant": 12, "user": 13}
    specials = {
        "<|im_start|>": IM_START,
        "<|im_end|>": IM_END,
        "<tts_pad>": TTS_PAD,
        "<tts_text_bos>": TTS_BOS,
        "<tts_text_eod>": TTS_EOS,
    }
    vocab = words | specials
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab |= {letter: 200 + i for i, letter in enumerate(letters)}
    vocab["\u010a"] = 198  # the newline
    parts = {word[:end] for word in words for end in range(2, len(word))}
    free = iter(sorted(set(range(TALKER["text_vocab_size"])) - set(vocab.values())))
    vocab |= {part: next(free) for part in sorted(parts)}
    vocab |= {f"<unused_{number}>": number for number in free}
    merges = [(word[:end], word[end]) for word in words for end in range(1, len(word))]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    tokenizer.save(str(folder / "tokenizer.json"))


def main() -> None:
    import torch
    from safetensors.torch import save_file

    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(0)  # for what the builders below leave as the official classes make it
    folder = Path(sys.argv[1])
    checkpoint = folder / "checkpoint"
    model_module, codec_module = official()
    model, codec = build_model(model_module), build_codec(codec_module)
    model.save_pretrained(checkpoint)
    codec.save_pretrained(checkpoint / "speech_tokenizer")
    write_tokenizer(checkpoint)
    oracle = Oracle(model, codec, Watch(model.talker), Reader(checkpoint))
    cases: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    with torch.no_grad():
        for text, voice in CASES:
            for streaming in (True, False):
                name = f"{text}-{voice}-{'streaming' if streaming else 'whole'}"
                cases[name], made = run_case(oracle, (text, voice), streaming)
                tensors |= {f"{name}.{key}": value.contiguous() for key, value in made.items()}
                cases[name]["frames"] = len(made["codes"])
                print(name, len(made["codes"]), float(made["wave"].abs().max()))
        tensors |= run_codec(codec)
    save_file(tensors, folder / "references.safetensors")
    versions = {name: importlib.metadata.version(name) for name in VERSIONS}
    about = {"versions": versions, "max_frames": MAX_FRAMES, "cases": cases}
    (folder / "cases.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
