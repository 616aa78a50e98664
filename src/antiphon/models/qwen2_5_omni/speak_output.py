"""The thinker's end of `speak`: a row for each token that it has computed, prompt and reply alike.

A row is the sum of the token's input embedding and the thinker's last hidden state; where the
prompt has sound, a picture or a video it is the hidden state alone. So transformers'
`Qwen2_5OmniForConditionalGeneration.generate` makes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import Qwen2_5OmniConfig

from antiphon.errors import AdapterError
from antiphon.models.qwen2_5_omni.speakers import Speakers
from antiphon.payload.adapters import (
    INPUT_IDS,
    OutputNeeds,
    StageContext,
    StepRows,
    layer_output,
)
from antiphon.payload.types import Payload, Scalar, per_token

ROWS = "rows"
"""Field: rows [n, thinker's hidden], in the thinker's dtype and in order."""

PROMPT = "prompt"
"""Meta of the first payload: how many of the rows, its own and later ones', are the prompt's."""

_EMBEDDINGS = layer_output(0)


class SpeakOutput:
    """Made once for the edge."""

    needs = OutputNeeds(
        include_hidden=True,
        side_outputs=(INPUT_IDS, _EMBEDDINGS),
        requires_token_updates=True,
    )

    def __init__(self, context: StageContext) -> None:
        config: Any = Qwen2_5OmniConfig.from_pretrained(context.model)
        thinker = config.thinker_config
        media = {thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id}
        self._media = torch.tensor(sorted(media))
        self._speakers = Speakers(context.model)
        self._stream = context.stream

    def open(self, uid: str, params: Mapping[str, Scalar]) -> SpokenRows:
        """Raises InvalidRequestError for a speaker that the checkpoint does not have: here, since
        the answer is not written yet.
        """
        self._speakers.chosen(params)
        return SpokenRows(self._media, stream=self._stream)


class SpokenRows:
    """One reply. Where the prompt ends is told by the first accepted token: rows exist of all that
    precedes the last one.
    """

    def __init__(self, media: torch.Tensor, *, stream: bool) -> None:
        self._media = media  # token ids
        self._stream = stream
        self._computed: list[StepRows] = []  # until the prompt is known
        self._positions = 0  # that rows came of
        self._prompt: int | None = None  # tokens of it
        self._made: list[torch.Tensor] = []  # rows that have not left
        self._begun = False  # the first payload has left

    def on_rows(self, rows: StepRows) -> list[Payload]:
        """Keep what they give; `on_tokens` follows. Raises AdapterError if the beginning is
        missing.
        """
        if rows.first_position != self._positions:
            raise AdapterError(
                f"rows of position {rows.first_position} came where those of {self._positions} are"
                " next: speech needs the whole conversation in one request"
            )
        self._positions += len(rows.side[INPUT_IDS])
        if self._prompt is None:
            self._computed.append(_kept(rows))
        else:
            self._made.append(self._sum(rows, self._prompt))
        return []

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        if self._prompt is None and token_ids:
            self._prompt = self._positions + 1 - len(token_ids)
        if self._prompt is not None:
            self._made += [self._sum(rows, self._prompt) for rows in self._computed]
            self._computed.clear()
        return self._payload() if self._stream else []

    def on_end(self) -> list[Payload]:
        return self._payload()

    def _sum(self, rows: StepRows, prompt: int) -> torch.Tensor:
        assert rows.hidden is not None  # noqa: S101  asked for in `needs`
        positions = torch.arange(rows.first_position, rows.first_position + len(rows.hidden))
        silent = torch.isin(rows.side[INPUT_IDS], self._media) & (positions < prompt)
        return rows.hidden + rows.side[_EMBEDDINGS].masked_fill(silent[:, None], 0)

    def _payload(self) -> list[Payload]:
        if not self._made or self._prompt is None:
            return []
        fields = {ROWS: per_token(torch.cat(self._made))}
        self._made.clear()
        meta: dict[str, Scalar] = {} if self._begun else {PROMPT: self._prompt}
        self._begun = True
        return [Payload(fields, meta)]


def _kept(rows: StepRows) -> StepRows:
    """A copy: the rows are views of their step."""
    assert rows.hidden is not None  # noqa: S101  asked for in `needs`
    side = {name: tensor.clone() for name, tensor in rows.side.items()}
    return replace(rows, hidden=rows.hidden.clone(), side=side)
