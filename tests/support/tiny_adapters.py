"""Small adapters for tiny stages. What they were given is kept in `SEEN`, by (edge, uid)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from antiphon.core.prompt_plan import PromptPlan
from antiphon.payload.adapters import (
    FRAMES,
    INPUT_IDS,
    Input,
    OutputNeeds,
    StageContext,
    StepRows,
    layer_output,
)
from antiphon.payload.types import Payload, Scalar, per_token


@dataclass
class Given:
    """What one request's adapter was given on one edge."""

    tokens: list[int] = field(default_factory=list)
    steps: list[StepRows] = field(default_factory=list)
    ends: int = 0

    @property
    def rows(self) -> torch.Tensor:
        """All hidden rows, [num_rows, hidden]."""
        return torch.cat([step.hidden for step in self.steps if step.hidden is not None])

    @property
    def positions(self) -> list[int]:
        """The position of each row, in the order they came."""
        found: list[int] = []
        for step in self.steps:
            count = len(step.hidden if step.hidden is not None else next(iter(step.side.values())))
            found += range(step.first_position, step.first_position + count)
        return found


SEEN: dict[tuple[str, str], Given] = {}
CALLS: Counter[str] = Counter()


def forget() -> None:
    SEEN.clear()
    CALLS.clear()


class Broken(Exception):
    """What a broken adapter raises."""


class _Output:
    """Options: `fail` names the method that raises, for requests with the parameter `broken`."""

    needs = OutputNeeds()

    def __init__(self, context: StageContext) -> None:
        self._context = context

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _Writer:
        CALLS["open"] += 1
        fail = str(self._context.options.get("fail", "")) if params.get("broken") else ""
        if fail == "open":
            raise Broken("open")
        SEEN[self._context.edge, uid] = given = Given()
        return _Writer(given, self.needs, fail, bool(params.get("silent")))


class _Writer:
    def __init__(self, given: Given, needs: OutputNeeds, fail: str, silent: bool) -> None:
        self._given = given
        self._needs = needs
        self._fail = fail
        self._silent = silent

    def _call(self, name: str) -> None:
        CALLS[name] += 1
        if self._fail == name:
            raise Broken(name)

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        self._call("tokens")
        self._given.tokens += token_ids
        return []

    def on_rows(self, rows: StepRows) -> list[Payload]:
        self._call("rows")
        self._given.steps.append(rows)
        return []

    def on_end(self) -> list[Payload]:
        self._call("end")
        self._given.ends += 1
        if self._silent:
            return []
        if self._needs.include_hidden:
            return [Payload({"rows": per_token(self._given.rows)})]
        return [Payload({"ids": per_token(torch.tensor(self._given.tokens, dtype=torch.int32))})]


class RowsOut(_Output):
    """Hidden rows, one payload at the end."""

    needs = OutputNeeds(include_hidden=True)


class TokensOut(_Output):
    """Sampled ids, one payload at the end."""

    needs = OutputNeeds(requires_token_updates=True)


class SideOut(_Output):
    """The side outputs of `tiny_stage_model`, without hidden rows."""

    needs = OutputNeeds(side_outputs=("double", "length", "table"), requires_token_updates=True)


class FramesOut(_Output):
    """Frames of a talker, beside its ids."""

    needs = OutputNeeds(side_outputs=(FRAMES,), requires_token_updates=True)


class LayersOut(_Output):
    """Ids and hidden states of all positions, after no layer, the first, and the last."""

    needs = OutputNeeds(
        include_hidden=True, side_outputs=(INPUT_IDS, *map(layer_output, (0, 1, 2)))
    )


class LayersOnlyOut(_Output):
    """Hidden states after one layer, and nothing else."""

    needs = OutputNeeds(side_outputs=(layer_output(1),))


class FarLayerOut(_Output):
    """Hidden states after more layers than any tiny model has."""

    needs = OutputNeeds(side_outputs=(layer_output(9),))


class MissingSideOut(_Output):
    """A side output that no model produces."""

    needs = OutputNeeds(side_outputs=("nothing",), requires_token_updates=True)


class RowsIn:
    """Rows become the prompt's embeddings. Option `salted`: the prefix cache's key follows them."""

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _RowsIn:
        return _RowsIn(bool(params.get("broken")), bool(params.get("short")))


@dataclass
class _RowsIn:
    broken: bool
    short: bool

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        CALLS["plan"] += 1
        if self.broken:
            raise Broken("plan")
        rows = payload.fields["rows"].tensor
        salt = hashlib.sha256(rows.numpy().tobytes()).hexdigest()
        plan = PromptPlan((0,) * len(rows), rows_local=True, salt=salt)
        return Input(plan, prompt_rows=rows[1:] if self.short else rows)

    def on_end(self) -> Input:
        return Input()


class TokensIn:
    """Ids become the prompt."""

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _TokensIn:
        return _TokensIn(bool(params.get("broken")))


@dataclass
class _TokensIn:
    broken: bool

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        CALLS["plan"] += 1
        if self.broken:
            raise Broken("plan")
        return Input(PromptPlan(tuple(payload.fields["ids"].tensor.tolist())))

    def on_end(self) -> Input:
        return Input()


class PartsOut:
    """One payload per step of tokens, with `each` per token; and `rest` of them at the end."""

    needs = OutputNeeds(requires_token_updates=True)

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _Parts:
        return _Parts(bool(params.get("each")), int(params.get("rest", 0)))


class _Parts:
    def __init__(self, each: bool, rest: int) -> None:
        self._each = each
        self._rest = rest

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        groups = [[token] for token in token_ids] if self._each else [list(token_ids)]
        return [_ids(ids) for ids in groups]

    def on_rows(self, rows: StepRows) -> list[Payload]:
        return []

    def on_end(self) -> list[Payload]:
        return [_ids([index]) for index in range(self._rest)]


def _ids(token_ids: list[int]) -> Payload:
    return Payload({"ids": per_token(torch.tensor(token_ids, dtype=torch.int32))})
