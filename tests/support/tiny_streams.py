"""A stream edge between two tiny stages: rows of the first condition the tokens of the second.

The consumer's prompt is made of the first rows, and each token that it feeds back is computed with
the next one: the contract of a talker, in small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from transformers import LlamaForCausalLM

from antiphon.core.prompt_plan import PromptPlan
from antiphon.payload.adapters import Input, OutputNeeds, StageContext, StepRows
from antiphon.payload.types import Payload, Scalar, per_token
from antiphon.stage.messages import Deliver, Step, Used
from tiny import HIDDEN, Driven

MADE: dict[str, list[torch.Tensor]] = {}  # rows that each producing request has given, in order


class RowChunksOut:
    """Hidden rows in chunks of `chunk` rows (a parameter of the request); 0: all at the end."""

    needs = OutputNeeds(include_hidden=True)

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _RowChunks:
        MADE[uid] = []
        return _RowChunks(int(params.get("chunk", 0)), MADE[uid])


@dataclass
class _RowChunks:
    size: int
    made: list[torch.Tensor]
    kept: list[torch.Tensor] = field(default_factory=list)

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        return []

    def on_rows(self, rows: StepRows) -> list[Payload]:
        assert rows.hidden is not None
        self.made += rows.hidden.unbind(0)
        self.kept += rows.hidden.unbind(0)
        chunks = []
        while self.size and len(self.kept) >= self.size:
            chunks.append(_payload(self.kept[: self.size]))
            del self.kept[: self.size]
        return chunks

    def on_end(self) -> list[Payload]:
        return [_payload(self.kept)] if self.kept else []


def _payload(rows: list[torch.Tensor]) -> Payload:
    return Payload({"rows": per_token(torch.stack(rows))})


class RowStreamIn:
    """The first `prompt` rows become the prompt, the others condition the tokens one by one."""

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _RowStream:
        return _RowStream(int(params["prompt"]))


@dataclass
class _RowStream:
    prompt: int
    kept: list[torch.Tensor] = field(default_factory=list)
    planned: bool = False

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        self.kept += payload.fields["rows"].tensor.unbind(0)
        return self._made(last=last)

    def on_end(self) -> Input:
        return self._made(last=True)

    def _made(self, *, last: bool) -> Input:
        plan = prompt_rows = None
        if not self.planned and len(self.kept) >= self.prompt:
            self.planned = True
            plan = PromptPlan((0,) * self.prompt, rows_local=True)
            prompt_rows = torch.stack(self.kept[: self.prompt])
            del self.kept[: self.prompt]
        rows = None
        if self.planned and self.kept:
            rows, self.kept = torch.stack(self.kept), []
        padding = padding_row() if last else None
        return Input(plan, prompt_rows, rows, padding)


def padding_row() -> torch.Tensor:
    """What conditions a token past the last row, [hidden]."""
    return torch.linspace(-1, 1, HIDDEN)


def expected_tokens(
    model: LlamaForCausalLM, rows: torch.Tensor, prompt: int, num_tokens: int
) -> list[int]:
    """What transformers answers: greedy tokens after `prompt` of the `rows` [n, hidden], each fed
    back with the next row.
    """
    inputs = rows[:prompt].unsqueeze(0)
    tokens: list[int] = []
    with torch.inference_mode():
        for index in range(num_tokens):
            hidden = model.model(inputs_embeds=inputs).last_hidden_state[0, -1]
            tokens.append(int(model.lm_head(hidden).argmax()))
            at = prompt + index
            row = rows[at] if at < len(rows) else padding_row()
            embedded = model.model.embed_tokens(torch.tensor([[tokens[-1]]])) + row
            inputs = torch.cat([inputs, embedded], dim=1)
    return tokens


class Chain:
    """The orchestrator's part between two stages that a test drives: refs down, room up.

    A consuming request has the id of its producer with a `'` behind it.
    """

    def __init__(self, producer: Driven, consumer: Driven) -> None:
        self.producer = producer
        self.consumer = consumer
        self.preempted: set[str] = set()  # requests that have lost their blocks
        self._seen = len(producer.events), len(consumer.events)

    def forward(self) -> None:
        """Pass on what both have reported since the last call."""
        down, up = self._seen
        items = [
            (f"{ref.uid}'", ref)
            for event in self.producer.events[down:]
            if isinstance(event, Step)
            for ref in event.refs
        ]
        if items:
            self.consumer.host.handle(Deliver(items))
        for event in self.consumer.events[up:]:
            if isinstance(event, Step):
                for edge, keys in event.used.items():
                    self.producer.host.handle(Used(edge, keys))
        self._seen = len(self.producer.events), len(self.consumer.events)

    def forget(self) -> None:
        """The test has cleared what both reported, all of which has been passed on."""
        self._seen = 0, 0

    def run(self, limit: int = 4000) -> None:
        """Step both in turn until neither has work."""
        for _ in range(limit):
            self.forward()
            busy = False
            for host in (self.producer.host, self.consumer.host):
                if host.has_work:
                    host.step()
                    busy = True
                    live = host.scheduler.requests.values()
                    self.preempted |= {r.request_id for r in live if r.num_preemptions}
            if not busy:
                self.forward()
                if not (self.producer.host.has_work or self.consumer.host.has_work):
                    return
        raise AssertionError(f"the stages still work after {limit} rounds")
