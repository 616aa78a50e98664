"""What a stage model can do beyond vLLM's own interface, and the methods that go with it.

A model says it once, in its attribute `capabilities`; it is read when the model has been loaded. A
model without the attribute is one of vLLM's own and can do nothing of this.

Everything here runs on the runner's main thread, inside the step, for all requests of the step at
once, and must not keep state of its own: what belongs to a request is kept by the runner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from antiphon.errors import TopologyError
from antiphon.payload.kv import KeysValues, KvMetadata

Draw = Callable[[int, torch.Tensor], torch.Tensor]
"""Chooses codes: (which code of the frame, from 1 on; logits [n, vocabulary]) → ids, int64 [n].

Each request's own choice: the most likely one if it samples greedily, else by lot.
"""

PastKeyValues = list[list[KeysValues] | None]
"""By request of the batch, by layer: keys and values, each [length, num_kv_heads, head_size]."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a stage model can do. Each field that is set asks for the methods of a protocol."""

    prompt_width: int | None = None
    """Width of the prompt rows that `PromptEmbedder.embed_prompt` takes. None: prompt rows are
    input embeddings already."""

    row_width: int | None = None
    """Width of the decode rows that `RowConditioned.condition` takes. None: they are as wide as
    input embeddings and are added to them."""

    integer_rows: bool = False
    """Whether decode rows are integers, such as ids of a table of the model's own."""

    frame_size: int = 0
    """Codes of a frame, the sampled token included: the model is a `DecodeHook`. 0: it is none."""

    attends_to_caches: bool = False
    """Whether it attends to the KV caches of other stages: the model is `CacheConditioned`."""


class PromptEmbedder(Protocol):
    """A model that makes input embeddings of what an input adapter planned."""

    def embed_prompt(self, rows: torch.Tensor, marks: torch.Tensor | None) -> torch.Tensor:
        """Input embeddings [n, hidden] of a prompt, once for each request.

        `rows` [n, prompt_width] and `marks` (int64 [n, m], None if the adapter gave none) are
        `Input.prompt_rows` and `Input.prompt_marks`, on the model's device; `rows` have the model's
        dtype if they are of floating point.
        """
        ...


class RowConditioned(Protocol):
    """A model that says itself how rows condition its inputs; without it they are added."""

    def condition(self, embeds: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Input embeddings [n, hidden] of output tokens with their rows [n, row_width].

        `embeds` are those of the tokens, or of their frames for a `DecodeHook`. Rows of floating
        point have the model's dtype.
        """
        ...


class DecodeHook(Protocol):
    """A model that makes a frame of codes of each token that it samples.

    The frame is made in the step that sampled the token, and is the next input in its place. A step
    computes it for all requests that sampled. Frames leave the stage as the side output `FRAMES`.
    """

    def predict_frames(
        self, hidden: torch.Tensor, token_ids: torch.Tensor, draw: Draw
    ) -> torch.Tensor:
        """Frames int64 [n, frame_size], each beginning with its token.

        `hidden` [n, hidden] are the last hidden states that the tokens `token_ids` (int64 [n]) were
        sampled from.
        """
        ...

    def embed_frames(self, frames: torch.Tensor) -> torch.Tensor:
        """Input embeddings [n, hidden] of frames int64 [n, frame_size]."""
        ...


class CacheConditioned(Protocol):
    """A model whose `forward` takes two more arguments: what its requests attend to.

    `past_key_values`: of each request of the batch, in its order, the keys and values of each layer
    in the order of `KvMetadata.layers`, None for a request without a cache. They have the dtype of
    the producer's cache, are on the model's device, and must not be written to: companions share
    them. `kv_metadata`: a `KvMetadata` or None for each. Neither is given in upstream's trial runs.
    """

    def forward(
        self,
        *args: Any,
        past_key_values: PastKeyValues | None = None,
        kv_metadata: list[KvMetadata | None] | None = None,
        **kwargs: Any,
    ) -> Any: ...


NOTHING = Capabilities()


def capabilities_of(model: object) -> Capabilities:
    """What a loaded model can do.

    Raises TopologyError if it says so in another way, or lacks a method that it promises.
    """
    found = getattr(model, "capabilities", NOTHING)
    name = type(model).__name__
    if not isinstance(found, Capabilities):
        raise TopologyError(
            f"{name}.capabilities is a {type(found).__name__}; give it a Capabilities of"
            f" antiphon.worker.capabilities"
        )
    for field, value, least in (
        ("prompt_width", found.prompt_width, 0),
        ("row_width", found.row_width, 1),
        ("frame_size", found.frame_size, 0),
    ):
        if value is not None and value < least:
            raise TopologyError(f"{name}.capabilities.{field} is {value}; it is at least {least}")
    for field, wanted, methods in (
        ("prompt_width", found.prompt_width is not None, ("embed_prompt",)),
        ("row_width", found.row_width is not None, ("condition",)),
        ("frame_size", found.frame_size > 0, ("predict_frames", "embed_frames")),
    ):
        for method in methods:
            if wanted and not callable(getattr(model, method, None)):
                raise TopologyError(
                    f"{name}.capabilities sets {field}, but the model has no method {method}; add"
                    f" it or leave {field} out"
                )
    return found
