"""The drawing network's dimensions, as its checkpoint stores them. Neither torch nor vllm."""

from __future__ import annotations

from pathlib import Path

import msgspec

CONFIG_FILE = "config.json"


class DrawSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dimensions of the network, and of the caches that it attends to."""

    grid: int = 16  # latents per side
    patch: int = 8  # pixels per side of what a latent stands for
    hidden: int = 192
    heads: int = 6  # of queries: the same number for each head of keys
    inner: int = 384
    waves: int = 4  # of the coordinates, from half a wave per side up
    colours: int = 48  # features of a pixel
    variants: int = 64  # pictures of one text

    kv_layers: tuple[str, ...] = tuple(
        f"model.layers.{number}.self_attn.attn" for number in (4, 12, 20, 28)
    )
    """Layers of the writing model by its engine's names, one for each of the network's own."""

    kv_heads: int = 3
    head_size: int = 64
    rope_theta: float = 100_000.0  # of the writing model's keys

    @property
    def side(self) -> int:
        """Pixels per side of a picture."""
        return self.grid * self.patch

    @property
    def coordinates(self) -> int:
        """Features of a place in the picture."""
        return 4 * self.waves

    @classmethod
    def read(cls, checkpoint: Path) -> DrawSizes:
        """From a checkpoint's config, whose other keys are for vLLM."""
        config = msgspec.json.decode((checkpoint / CONFIG_FILE).read_bytes())
        return msgspec.convert(config["draw"], cls)
