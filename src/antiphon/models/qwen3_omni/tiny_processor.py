"""A tokenizer and a processor for tiny checkpoints of Qwen3-Omni, made of nothing.

The tokenizer is byte-level BPE without merges: each byte is a token, and the few words and special
tokens that the prompt's format needs have ids of their own.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 512
ROLES = {"system": 10, "user": 11, "assistant": 12}
SPECIALS = {
    "<|im_start|>": 500,
    "<|im_end|>": 501,
    "<tts_pad>": 502,
    "<tts_text_bos>": 503,
    "<tts_text_eod>": 504,
    "<|audio_pad|>": 505,
    "<|image_pad|>": 506,
    "<|video_pad|>": 507,
    "<|audio_start|>": 508,
    "<|audio_end|>": 509,
    "<|vision_start|>": 510,
    "<|vision_end|>": 511,
}
MEL_BINS = 16
PATCH_SIZE = 4
MERGE_SIZE = 2
TEMPORAL_PATCH_SIZE = 2

# A message's content is a text, or a list of parts as in the real checkpoints' template.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'audio' %}<|audio_start|><|audio_pad|><|audio_end|>"
    "{% elif part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte; the ids of `ROLES` and `SPECIALS` are as given there."""
    vocabulary = ROLES | SPECIALS
    free = (i for i in range(VOCABULARY) if i not in set(vocabulary.values()))
    vocabulary |= {byte: next(free) for byte in sorted(pre_tokenizers.ByteLevel.alphabet())}
    vocabulary |= {f"<unused{number}>": number for number in free}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIALS]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ROLES])
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",  # noqa: S106 - no password
        pad_token="<|im_end|>",  # noqa: S106
        extra_special_tokens={
            "image_token": "<|image_pad|>",
            "audio_token": "<|audio_pad|>",
            "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        },
    )
    return made


def save_processor(folder: Path, family: str = "Qwen3OmniMoeProcessor") -> None:
    """Write tokenizer, chat template and the configuration of the other processors.

    `family` is transformers' class of them all. Written by hand, since transformers makes a
    processor of video only where torchvision is.
    """
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    patches = {
        "patch_size": PATCH_SIZE,
        "merge_size": MERGE_SIZE,
        "temporal_patch_size": TEMPORAL_PATCH_SIZE,
        "size": {"shortest_edge": 64, "longest_edge": 1024},  # pixels in all
    }
    config = {
        "processor_class": family,
        "feature_extractor": {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": MEL_BINS,
            "sampling_rate": 16000,
            "return_attention_mask": True,
        },
        "image_processor": {"image_processor_type": "Qwen2VLImageProcessor", **patches},
        "video_processor": {"video_processor_type": "Qwen2VLVideoProcessor", **patches},
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "processor_config.json").write_text(text, encoding="utf-8")
