"""A tiny out-of-tree talker: Llama with a decode hook, prompts and rows that it embeds itself.

A frame has three codes: the sampled token and two that follow from the hidden states it was sampled
from. `Reference` computes the same with transformers, one request at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from transformers import DynamicCache
from vllm import ModelRegistry
from vllm.config import VllmConfig
from vllm.model_executor.models.llama import LlamaForCausalLM

from antiphon.core.prompt_plan import PromptPlan
from antiphon.payload.adapters import Input, StageContext
from antiphon.payload.types import Payload, Scalar
from antiphon.worker.capabilities import Capabilities, Draw
from tiny import HIDDEN, VOCAB, reference

ARCH = "TinyTalker"
WIDTH = 16  # of prompt rows and decode rows
FRAME = 3
CODES = 40  # vocabulary of the further codes
CLUMSY = 9999  # an id whose prompt cannot be embedded
SHORT = 9998  # one whose prompt gets a row too few


def register() -> None:
    ModelRegistry.register_model(ARCH, TinyTalker)


class Tables(nn.Module):
    """The talker's own weights, drawn by lot."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)

        def lots(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        self.register_buffer("projection", 0.3 * lots(WIDTH, HIDDEN), persistent=False)
        self.register_buffer("marks", lots(VOCAB, HIDDEN), persistent=False)
        self.register_buffer("heads", lots(FRAME - 1, CODES, HIDDEN), persistent=False)
        self.register_buffer("codes", 0.5 * lots(FRAME - 1, CODES, HIDDEN), persistent=False)

    def prompt(self, rows: torch.Tensor, marks: torch.Tensor | None) -> torch.Tensor:
        made = rows @ self.projection
        return made if marks is None else made + self.marks[marks[:, 0]]

    def frames(self, hidden: torch.Tensor, token_ids: torch.Tensor, draw: Draw) -> torch.Tensor:
        codes, state = [token_ids], hidden
        for code in range(1, FRAME):
            chosen = draw(code, state @ self.heads[code - 1].T)
            codes.append(chosen)
            state = state + self.codes[code - 1][chosen]
        return torch.stack(codes, 1)

    def embed(self, tokens: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
        further = [self.codes[code - 1][frames[:, code]] for code in range(1, FRAME)]
        return torch.stack([tokens, *further]).sum(0)


class TinyTalker(LlamaForCausalLM):
    capabilities = Capabilities(prompt_width=WIDTH, row_width=WIDTH, frame_size=FRAME)

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.tables = Tables()

    def embed_prompt(self, rows: torch.Tensor, marks: torch.Tensor | None) -> torch.Tensor:
        if marks is not None and bool((marks == CLUMSY % VOCAB).any()):
            raise RuntimeError("the prompt cannot be embedded")
        short = marks is not None and bool((marks == SHORT % VOCAB).any())
        return self.tables.prompt(rows, marks)[int(short) :]

    def condition(self, embeds: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return embeds + rows @ self.tables.projection

    def predict_frames(
        self, hidden: torch.Tensor, token_ids: torch.Tensor, draw: Draw
    ) -> torch.Tensor:
        return self.tables.frames(hidden, token_ids, draw)

    def embed_frames(self, frames: torch.Tensor) -> torch.Tensor:
        return self.tables.embed(self.embed_input_ids(frames[:, 0]), frames)


class TalkerPrompt:
    """A prompt adapter: the ids are longer than any vocabulary, and say what the rows are.

    Parameters: `rows`, the number of decode rows, and whether there is `padding`; `short`: one mark
    too few.
    """

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _TalkerPrompt:
        return _TalkerPrompt(params)


class _TalkerPrompt:
    def __init__(self, params: Mapping[str, Scalar]) -> None:
        self._params = params

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        rows, marks, decode, padding = planned(payload.token_ids, self._params)
        if self._params.get("short"):
            marks = marks[1:]
        plan = PromptPlan((0,) * len(rows), rows_local=True)
        return Input(plan, rows, decode, padding, prompt_marks=marks)

    def on_end(self) -> Input:
        return Input()


def planned(
    ids: tuple[int, ...], params: Mapping[str, Scalar]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Prompt rows and marks, decode rows and padding of a prompt of these ids."""
    generator = torch.Generator().manual_seed(sum(ids))
    rows = torch.randn(len(ids) + 2, WIDTH, generator=generator)
    marks = torch.tensor([[id_ % (VOCAB if id_ >= SHORT else 10)] for id_ in ids] + [[1], [2]])
    decode = torch.randn(int(params.get("rows", 0)), WIDTH, generator=generator)
    padding = torch.randn(WIDTH, generator=generator) if params.get("padding") else None
    return rows, marks, decode, padding


class Reference:
    """Greedy decoding of the same talker with transformers, one request at a time."""

    def __init__(self, folder: str) -> None:
        self._model = reference(folder)
        self._tables = Tables()

    @torch.inference_mode()
    def frames(
        self, ids: tuple[int, ...], params: Mapping[str, Scalar], count: int, *, shift: int = 0
    ) -> list[list[int]]:
        """The first `count` frames; `shift` reads a wrong decode row."""
        rows, marks, decode, padding = planned(ids, params)
        cache = DynamicCache(config=self._model.config)
        embeds, made = self._tables.prompt(rows, marks), []
        while True:
            given = {"inputs_embeds": embeds[None], "past_key_values": cache, "use_cache": True}
            hidden = self._model.model(**given).last_hidden_state[0, -1:]
            token = self._model.lm_head(hidden).argmax(-1)
            frame = self._tables.frames(hidden, token, lambda _, logits: logits.argmax(-1))
            made.append(frame[0].tolist())
            if len(made) == count:
                return made
            embeds = self._tables.embed(self._model.model.embed_tokens(token), frame)
            index = len(made) - 1 + shift
            row = decode[index] if index < len(decode) else padding
            if row is not None:
                embeds = embeds + row @ self._tables.projection
