"""The rest of a frame: the codes that follow its first one, for talkers of Qwen3.

A small decoder runs once for each of these codes, over a sequence that is as long as a frame and
lives for one step only. So it has no paged cache: keys and values are scratch tensors, requests are
a batch, weights are stacked, and everything is plain functional torch. It is not split: a talker's
prompts are rows, which are given to a stage of one worker.

Sources: transformers' `Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration`, and the class
of that kind in qwen-tts 0.1.1, which adds a projection of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from vllm.model_executor.utils import set_weight_attrs

from antiphon.errors import ModelUnavailableError
from antiphon.models.loading import check_shape
from antiphon.worker.capabilities import Draw

_Index = tuple[int | slice, ...]
"""Where a weight lies in a stacked parameter."""


@dataclass(frozen=True, slots=True)
class PredictorSizes:
    """Dimensions of a predictor."""

    groups: int  # codes of a frame, the first included
    codebook: int  # ids of each code
    width: int  # of the talker's hidden states, and of the embeddings of codes
    hidden: int
    inner: int  # of the MLPs
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float

    @classmethod
    def of(cls, config: Any, width: int) -> PredictorSizes:
        """Those of a checkpoint's `code_predictor_config`, in a talker whose hidden states have
        this width. Raises ModelUnavailableError for a decoder of another kind.
        """
        for name, wanted in (("hidden_act", "silu"), ("attention_bias", False)):
            if (found := getattr(config, name)) != wanted:
                raise ModelUnavailableError(
                    f"the code predictor's {name} is {found!r}; only {wanted!r} is supported"
                )
        rope = config.rope_parameters
        if (kind := rope.get("rope_type", "default")) != "default":
            raise ModelUnavailableError(f"a code predictor of rope_type {kind!r} is not supported")
        window = config.sliding_window if "sliding_attention" in config.layer_types else None
        if (
            config.num_code_groups < 2
            or (window or config.num_code_groups) < config.num_code_groups
        ):
            raise ModelUnavailableError(
                f"a code predictor of {config.num_code_groups} codes with an attention window of"
                f" {window} is not supported"
            )
        return cls(
            groups=config.num_code_groups,
            codebook=config.vocab_size,
            width=width,
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            eps=config.rms_norm_eps,
            rope_theta=rope["rope_theta"],
        )


class CodePredictor(nn.Module):
    """Weights of all layers in stacked tensors, the layer first. See the module's docstring."""

    def __init__(self, sizes: PredictorSizes) -> None:
        super().__init__()
        self.sizes = s = sizes
        self._queries, self._keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
        rest = s.groups - 1
        self.input_norms = _weights(s.layers, s.hidden)
        self.qkv = _weights(s.layers, self._queries + 2 * self._keys, s.hidden)
        self.query_norms = _weights(s.layers, s.head_dim)
        self.key_norms = _weights(s.layers, s.head_dim)
        self.attention_out = _weights(s.layers, s.hidden, self._queries)
        self.inner_norms = _weights(s.layers, s.hidden)
        self.gate_up = _weights(s.layers, 2 * s.inner, s.hidden)
        self.down = _weights(s.layers, s.hidden, s.inner)
        self.last_norm = _weights(s.hidden)
        self.heads = _weights(rest, s.codebook, s.hidden)
        self.tables = _weights(rest, s.codebook, s.width)
        self.projects = s.width != s.hidden
        if self.projects:
            self.projection_weight = _weights(s.hidden, s.width)
            self.projection_bias = _weights(s.hidden)
        exponents = torch.arange(0, s.head_dim, 2, dtype=torch.float32) / s.head_dim
        places = torch.arange(s.groups, dtype=torch.float32)
        angles = torch.outer(places, s.rope_theta**-exponents).repeat(1, 2)  # [groups, head_dim]
        dtype = self.qkv.dtype
        self.cos = nn.Buffer(angles.cos().to(dtype), persistent=False)
        # Of a rotation's halves one is negative: see `_rotated`.
        signs = torch.ones(s.head_dim).index_fill_(0, torch.arange(s.head_dim // 2), -1.0)
        self.sin = nn.Buffer((angles.sin() * signs).to(dtype), persistent=False)

    def forward(self, hidden: torch.Tensor, first: torch.Tensor, draw: Draw) -> torch.Tensor:
        """The other codes of frames, int64 [n, groups - 1].

        `hidden` [n, width] are the talker's last hidden states, `first` [n, width] its embeddings
        of the codes that it sampled from them.
        """
        s = self.sizes
        shape = (s.layers, 2, len(hidden), s.kv_heads, s.groups, s.head_dim)
        cache = hidden.new_empty(shape)
        norms = self._head_norms()
        inputs, start, codes = torch.stack([hidden, first], dim=1), 0, []
        for group in range(s.groups - 1):
            last = self._decode(self._project(inputs), start, cache, norms)
            drawn = draw(group + 1, F.linear(last, self.heads[group]))
            codes.append(drawn)
            start += inputs.shape[1]
            inputs = F.embedding(drawn, self.tables[group]).unsqueeze(1)
        return torch.stack(codes, dim=1)

    def embed(self, codes: torch.Tensor) -> torch.Tensor:
        """Embeddings [n, groups - 1, width] of codes int64 [n, groups - 1], by their tables."""
        offsets = torch.arange(codes.shape[1], device=codes.device) * self.sizes.codebook
        return F.embedding(codes + offsets, self.tables.flatten(0, 1))

    def _project(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.projects:
            return inputs
        return F.linear(inputs, self.projection_weight, self.projection_bias)

    def _head_norms(self) -> torch.Tensor:
        """Norms of all queries' and keys' heads [layers, heads + kv_heads, 1, head_dim]: they are
        taken in one go, since here the number of operations is what costs.
        """
        s = self.sizes
        queries = self.query_norms.unsqueeze(1).expand(-1, s.heads, -1)
        keys = self.key_norms.unsqueeze(1).expand(-1, s.kv_heads, -1)
        return torch.cat([queries, keys], dim=1).unsqueeze(2)

    def _decode(
        self, x: torch.Tensor, start: int, cache: torch.Tensor, norms: torch.Tensor
    ) -> torch.Tensor:
        """Last hidden states [n, hidden] of inputs `x` [n, length, hidden] from place `start` on.

        Fills `cache` [layers, 2, n, kv_heads, groups, head_dim] at their places.
        """
        eps, hidden = self.sizes.eps, (self.sizes.hidden,)
        for layer in range(self.sizes.layers):
            normed = F.rms_norm(x, hidden, self.input_norms[layer], eps)
            x = x + self._attend(layer, normed, start, cache[layer], norms[layer])
            normed = F.rms_norm(x, hidden, self.inner_norms[layer], eps)
            gate, up = F.linear(normed, self.gate_up[layer]).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, self.down[layer])
        return F.rms_norm(x[:, -1], hidden, self.last_norm, eps)

    def _attend(
        self, layer: int, x: torch.Tensor, start: int, cache: torch.Tensor, norms: torch.Tensor
    ) -> torch.Tensor:
        s, stop = self.sizes, start + x.shape[1]
        # [n, heads + 2 * kv_heads, length, head_dim]
        states = F.linear(x, self.qkv[layer]).view(*x.shape[:2], -1, s.head_dim).transpose(1, 2)
        turning, value = torch.split(states, [s.heads + s.kv_heads, s.kv_heads], dim=1)
        turning = F.rms_norm(turning, (s.head_dim,), eps=s.eps) * norms
        turned = _rotated(turning, self.cos[start:stop], self.sin[start:stop])
        cache[0, :, :, start:stop] = turned[:, s.heads :]
        cache[1, :, :, start:stop] = value
        seen = F.scaled_dot_product_attention(
            turned[:, : s.heads],
            cache[0, :, :, :stop],
            cache[1, :, :, :stop],
            is_causal=start == 0,  # later on it is one place, which sees all before it
            enable_gqa=True,
        )
        return F.linear(seen.transpose(1, 2).flatten(2), self.attention_out[layer])

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Take weights by the names that transformers and qwen-tts give them, with nothing before
        `model.` or `lm_head.`. Returns the names of the parameters that they belong to.

        Raises ModelUnavailableError for a weight that has no place, or another shape than it.
        """
        loaded = set()
        for name, tensor in weights:
            owner, index = self._place(name)
            parameter: Any = self.get_parameter(owner)
            try:
                place = parameter.data[index]
            except IndexError as error:
                raise ModelUnavailableError(
                    f"the code predictor has no place for the weight {name}: {error}"
                ) from error
            check_shape(f"the code predictor's {name}", tensor, place)
            parameter.weight_loader(parameter, tensor, index)
            loaded.add(owner)
        return loaded

    def _place(self, name: str) -> tuple[str, _Index]:
        """Whose part a weight is, and which part. Raises ModelUnavailableError."""
        match name.split("."):
            case ["lm_head", group, "weight"] if group.isdecimal():
                return "heads", (int(group),)
            case ["model", "codec_embedding", group, "weight"] if group.isdecimal():
                return "tables", (int(group),)
            case ["model", "norm", "weight"]:
                return "last_norm", ()
            case ["small_to_mtp_projection", ("weight" | "bias") as kind] if self.projects:
                return f"projection_{kind}", ()
            case ["model", "layers", layer, *_, part, "weight"] if (
                part in self._parts and layer.isdecimal()
            ):
                owner, begin, end = self._parts[part]
                return owner, (int(layer), slice(begin, end))
        raise ModelUnavailableError(f"the code predictor has no place for the weight {name}")

    @property
    def _parts(self) -> dict[str, tuple[str, int | None, int | None]]:
        """A layer's weights: whose part each is, from which row to which."""
        q, k, inner = self._queries, self._keys, self.sizes.inner
        return {
            "input_layernorm": ("input_norms", None, None),
            "q_proj": ("qkv", 0, q),
            "k_proj": ("qkv", q, q + k),
            "v_proj": ("qkv", q + k, None),
            "q_norm": ("query_norms", None, None),
            "k_norm": ("key_norms", None, None),
            "o_proj": ("attention_out", None, None),
            "post_attention_layernorm": ("inner_norms", None, None),
            "gate_proj": ("gate_up", 0, inner),
            "up_proj": ("gate_up", inner, None),
            "down_proj": ("down", None, None),
        }


def _weights(*shape: int) -> nn.Parameter:
    """Room for weights, in the dtype and on the device that are torch's defaults now."""
    parameter = nn.Parameter(torch.empty(shape), requires_grad=False)
    set_weight_attrs(parameter, {"weight_loader": _load_part})
    return parameter


def _load_part(param: torch.Tensor, loaded_weight: torch.Tensor, index: _Index) -> None:
    """A weight loader of vLLM's for a stacked parameter. When upstream loads again, it is called
    later on, with a parameter that has memory: so it is called through the attribute.
    """
    param.data[index].copy_(loaded_weight)


def _rotated(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of `states` [..., length, head_dim]; `sin` is negative in its first half."""
    return states * cos + states.roll(states.shape[-1] // 2, -1) * sin
