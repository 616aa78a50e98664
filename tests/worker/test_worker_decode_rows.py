"""A row conditions the output token of its index, however a step came to compute that token."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from antiphon.worker.decode_rows import Place, StepSpans, condition_rows, output_places
from antiphon.worker.device import CpuOps
from antiphon.worker.inlets import DecodeRows

PROMPT = 4


def kept(count: int, padding: float | None = None) -> DecodeRows:
    """Rows that say their index."""
    rows = DecodeRows(padding=None if padding is None else torch.tensor([padding]))
    rows.append(torch.arange(count, dtype=torch.float32).unsqueeze(1))
    return rows


def places(
    rows: dict[str, DecodeRows], *spans: tuple[str, int, int], prompt: int = PROMPT
) -> list[tuple[int, float]]:
    """Token row and row value of each place; `spans` are (uid, computed before, tokens)."""
    step = StepSpans(
        [uid for uid, _, _ in spans],
        np.full(len(spans), prompt),
        np.array([computed for _, computed, _ in spans]),
        np.cumsum([0, *(count for _, _, count in spans)]),
    )
    found = []
    for place in output_places(step, rows.__contains__):
        if (row := rows[place.uid].get(place.index)) is not None:
            found.append((place.token, float(row[0])))
    return found


# --- places ---------------------------------------------------------------------------------------


def test_an_output_token_is_computed_with_the_row_of_its_index() -> None:
    assert places({"a": kept(3)}, ("a", PROMPT, 1)) == [(0, 0.0)]
    assert places({"a": kept(3)}, ("a", PROMPT + 2, 1)) == [(0, 2.0)]


@pytest.mark.parametrize(("computed", "count"), [(0, PROMPT), (0, 2), (2, 1), (PROMPT - 1, 1)])
def test_a_prompt_is_never_touched(computed: int, count: int) -> None:
    """Whole or in pieces, also a last piece of one token."""
    assert places({"a": kept(3)}, ("a", computed, count)) == []


def test_a_replay_after_preemption_is_the_same_as_decoding() -> None:
    """Prompt and output in one piece, and in pieces that begin anywhere."""
    rows = {"a": kept(5)}
    assert places(rows, ("a", 0, PROMPT + 5)) == [(PROMPT + r, float(r)) for r in range(5)]
    assert places(rows, ("a", 2, 4)) == [(2, 0.0), (3, 1.0)]
    assert places(rows, ("a", PROMPT + 2, 3)) == [(0, 2.0), (1, 3.0), (2, 4.0)]


def test_past_the_last_row_there_is_padding_or_nothing() -> None:
    span = ("a", PROMPT + 1, 3)
    assert places({"a": kept(2, padding=9.0)}, span) == [(0, 1.0), (1, 9.0), (2, 9.0)]
    assert places({"a": kept(2)}, span) == [(0, 1.0)]


def test_requests_of_a_batch_have_their_own_rows() -> None:
    """C28: a prefill, a request without rows, a decode and a replay in one step."""
    rows = {uid: kept(4) for uid in ("prefill", "decode", "replay")}
    spans = (("prefill", 0, 3), ("plain", 9, 1), ("decode", PROMPT + 3, 1), ("replay", 3, 3))
    assert places(rows, *spans) == [(4, 3.0), (6, 0.0), (7, 1.0)]


@given(
    prompt=st.integers(1, 6),
    outputs=st.integers(0, 8),
    num_rows=st.integers(0, 10),
    cuts=st.lists(st.integers(1, 5), max_size=20),
)
def test_any_chunking_gives_every_token_its_row_once(
    prompt: int, outputs: int, num_rows: int, cuts: list[int]
) -> None:
    rows, seen, computed = {"a": kept(num_rows, padding=-1.0)}, {}, 0
    total = prompt + outputs
    for cut in [*cuts, total]:
        count = min(cut, total - computed)
        for token, value in places(rows, ("a", computed, count), prompt=prompt):
            assert computed + token not in seen
            seen[computed + token] = value
        computed += count
    expected = [float(r) if r < num_rows else -1.0 for r in range(outputs)]
    assert seen == {prompt + r: value for r, value in enumerate(expected)}


# --- what is done at a place ----------------------------------------------------------------------


def conditioned(
    embeds: torch.Tensor, rows: dict[int, list[float] | torch.Tensor], condition: Any = None
) -> torch.Tensor:
    """`embeds` after conditioning with the rows of these token rows."""
    kept = {}
    for token, row in rows.items():
        kept[str(token)] = DecodeRows()
        kept[str(token)].append(torch.as_tensor(row).unsqueeze(0))
    condition_rows(
        embeds, [Place(token, str(token), 0) for token in rows], kept.get, condition, CpuOps()
    )
    return embeds


def test_rows_are_added_where_they_belong_and_nowhere_else() -> None:
    embeds = conditioned(torch.zeros(5, 2), {1: [1.0, 2.0], 4: [3.0, 4.0]})
    assert embeds.tolist() == [[0, 0], [1, 2], [0, 0], [0, 0], [3, 4]]


def test_a_model_that_conditions_itself_is_asked_once() -> None:
    asked = []

    def double(embeds: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        asked.append((embeds.shape, rows.shape))
        return embeds * rows

    embeds = conditioned(torch.ones(4, 2), {0: [5.0], 3: [7.0]}, double)
    assert embeds.tolist() == [[5, 5], [1, 1], [1, 1], [7, 7]]
    assert asked == [((2, 2), (2, 1))]
    conditioned(torch.ones(4, 2), {}, double)
    assert len(asked) == 1


def test_rows_take_the_embeddings_dtype() -> None:
    embeds = torch.zeros(1, 2, dtype=torch.bfloat16)
    conditioned(embeds, {0: torch.tensor([1.0, 2.0], dtype=torch.float64)})
    assert embeds.dtype == torch.bfloat16
    assert embeds.tolist() == [[1, 2]]


def test_rows_of_integers_stay_what_they_are() -> None:
    """A bfloat16 cannot tell 100,001 from 100,002."""
    seen = []

    def look_up(embeds: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        seen.append(rows)
        return embeds

    conditioned(torch.zeros(1, 2, dtype=torch.bfloat16), {0: torch.tensor([100_001])}, look_up)
    assert seen[0].tolist() == [[100_001]]
    assert not seen[0].is_floating_point()
