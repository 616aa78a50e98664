"""The checkpoint's configuration as transformers, and through it vLLM, reads it."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig


class Code2WavConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Sizes of the codec decoder; the attention fields exist because vLLM asks for them."""

    model_type = "antiphon_voice_code2wav"

    def __init__(
        self,
        *,
        vocab_size: int = 2048,
        code_dim: int = 48,
        hidden_size: int = 256,
        num_hidden_layers: int = 3,
        decoder_inner: int = 512,
        tail_layers: int = 4,
        tail_inner: int = 768,
        spectrum_size: int = 3005,
        tail_norm_eps: float = 1e-6,
        noise_seed: int = 0,
        max_position_embeddings: int = 2048,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.code_dim = code_dim
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.decoder_inner = decoder_inner
        self.tail_layers = tail_layers
        self.tail_inner = tail_inner
        self.spectrum_size = spectrum_size
        self.tail_norm_eps = tail_norm_eps
        self.noise_seed = noise_seed
        self.max_position_embeddings = max_position_embeddings
        self.num_attention_heads = 1
        super().__init__(**kwargs)
