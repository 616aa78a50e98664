"""The thinker's end of `speak`: the rows that the talker's prompt is made of, then one for each
token of the reply.

Nothing leaves before the reply's first token has been computed: until then there is nothing to
speak, and a reply without one (it ended at once) ends the edge with nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from antiphon.errors import AdapterError
from antiphon.models.qwen3_omni.dialogue import REPLY_ROWS, Markers, talker_view
from antiphon.payload.adapters import (
    INPUT_IDS,
    OutputNeeds,
    StageContext,
    StepRows,
    layer_output,
)
from antiphon.payload.types import Field, Payload, Scalar, per_token

PROMPT = "prompt"
"""Rows that the talker's prompt is made of, [n, thinker's hidden], in the thinker's dtype: what
users said, then `REPLY_ROWS` of the reply. In the first payload only."""

MEDIA = "media"
"""uint8 [n] beside `PROMPT`: 1 where a row is the hidden state of sound or a picture, 0 where it is
an input embedding."""

REPLY = "reply"
"""Input embeddings of further tokens of the reply, [n, thinker's hidden], in order."""


class SpeakOutput:
    """Made once for the edge. Of a layer's rows only those of media cross."""

    def __init__(self, context: StageContext) -> None:
        self._markers = Markers.read(context.model)
        self._accepted = layer_output(self._markers.accept_layer)
        self._stream = context.stream
        self.needs = OutputNeeds(
            side_outputs=(INPUT_IDS, layer_output(0), self._accepted),
            requires_token_updates=True,
        )

    def open(self, uid: str, params: Mapping[str, Scalar]) -> SpokenRows:
        return SpokenRows(self._markers, self._accepted, stream=self._stream)


class SpokenRows:
    """One reply. Where the prompt ends is told by the first accepted token: rows exist of all that
    precedes the last one.
    """

    def __init__(self, markers: Markers, accepted: str, *, stream: bool) -> None:
        self._markers = markers
        self._accepted = accepted  # name of the side output that media have
        self._stream = stream
        self._positions = 0  # that rows came of
        self._ids: list[int] = []  # of the positions with rows, until the prompt is known
        self._embeds: list[torch.Tensor] = []  # that have not left, each [n, hidden]
        self._media: list[torch.Tensor] = []  # hidden states of media positions, in order
        self._prompt: int | None = None  # tokens of it
        self._begun = False  # the first payload has left

    def on_rows(self, rows: StepRows) -> list[Payload]:
        """Keep what will cross; `on_tokens` follows and sends it. Raises AdapterError if the
        beginning is missing.
        """
        if rows.first_position != self._positions:
            raise AdapterError(
                f"rows of position {rows.first_position} came where those of {self._positions} are"
                " next: speech needs the whole conversation in one request"
            )
        self._embeds.append(rows.side[layer_output(0)].clone())
        self._positions += len(self._embeds[-1])
        if self._prompt is None:
            ids = rows.side[INPUT_IDS]
            self._ids += ids.tolist()
            media = torch.isin(ids, torch.tensor(sorted(self._markers.media)))
            self._media.append(rows.side[self._accepted][media])
        return []

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        if self._prompt is None and token_ids:
            self._prompt = len(self._ids) + 1 - len(token_ids)
        return self._made() if self._stream else []

    def on_end(self) -> list[Payload]:
        return self._made()

    def _made(self) -> list[Payload]:
        if not self._embeds or self._prompt is None:
            return []
        embeds = torch.cat(self._embeds)
        if self._begun:
            fields = {REPLY: per_token(embeds)}
        else:
            fields = self._first(embeds)
            if not fields:
                return []
            self._begun = True
        self._embeds.clear()
        return [Payload(fields)]

    def _first(self, embeds: torch.Tensor) -> dict[str, Field]:
        """The first payload, out of all rows so far; empty if there are too few."""
        view = talker_view(self._ids[: self._prompt], self._markers)
        stop = view.reply + REPLY_ROWS
        if len(embeds) < stop:
            return {}
        is_media = torch.zeros(len(embeds), dtype=torch.bool)
        is_media[[p for p, token in enumerate(self._ids) if token in self._markers.media]] = True
        mixed = embeds.clone()
        mixed[is_media] = torch.cat(self._media)
        self._media.clear()
        marks = torch.cat([is_media[view.user], torch.zeros(REPLY_ROWS, dtype=torch.bool)])
        rows = torch.cat([mixed[view.user], embeds[view.reply : stop]])
        fields = {PROMPT: per_token(rows), MEDIA: per_token(marks.to(torch.uint8))}
        if len(embeds) > stop:
            fields[REPLY] = per_token(embeds[stop:].clone())
        return fields
