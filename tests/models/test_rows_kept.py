"""Output adapters that keep rows across steps: they keep copies, and miss no position."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.core.frames import FrameWindows
from antiphon.errors import AdapterError
from antiphon.models.qwen2_5_omni.speak_output import ROWS
from antiphon.models.qwen2_5_omni.speak_output import SpokenRows as Rows25
from antiphon.models.qwen3_omni.dialogue import Markers
from antiphon.models.qwen3_omni.speak_output import SpokenRows as Rows3
from antiphon.payload.adapters import FRAMES, INPUT_IDS, StepRows, layer_output

EXAMPLES = Path(__file__).parents[2] / "examples"
MARKERS = Markers(im_start=1, user=2, assistant=3, media=frozenset({9}), accept_layer=1)


def step(first: int, ids: list[int]) -> StepRows:
    embeds = torch.arange(first, first + len(ids)).float()[:, None].repeat(1, 2)
    side = {INPUT_IDS: torch.tensor(ids), layer_output(0): embeds, layer_output(1): -embeds}
    return StepRows(first, embeds.clone(), side)


def rows3() -> Rows3:
    return Rows3(MARKERS, layer_output(1), stream=True)


def rows25() -> Rows25:
    return Rows25(torch.tensor([9]), stream=True)


@pytest.mark.parametrize("make", [rows3, rows25])
def test_a_gap_is_an_error(make: Any) -> None:
    rows = make()
    rows.on_rows(step(0, [1, 2, 5]))
    with pytest.raises(AdapterError, match="position 4 came where those of 3 are next"):
        rows.on_rows(step(4, [5]))


@pytest.mark.parametrize("make", [rows3, rows25])
def test_a_beginning_that_is_missing_is_an_error(make: Any) -> None:
    """As of a prompt whose first part was found in a cache."""
    with pytest.raises(AdapterError, match="the whole conversation"):
        make().on_rows(step(2, [5]))


@pytest.mark.parametrize("make", [rows3, rows25])
def test_positions_go_on_behind_the_prompt(make: Any) -> None:
    rows = make()
    for given in (step(0, [1, 2, 5]), step(3, [1, 3, 5])):
        rows.on_rows(given)
    rows.on_tokens([7])
    rows.on_rows(step(6, [7]))
    with pytest.raises(AdapterError, match="where those of 7 are next"):
        rows.on_rows(step(6, [7]))


def test_rows_before_the_first_token_are_copies() -> None:
    """Of a prompt in pieces: the step's own memory is not kept, and may be used again."""
    rows, given = rows25(), step(0, [1, 9, 5])
    rows.on_rows(given)
    given.hidden.fill_(torch.nan)
    given.side[layer_output(0)].fill_(torch.nan)
    given.side[INPUT_IDS].zero_()
    (payload,) = rows.on_tokens([7])
    assert payload.fields[ROWS].tensor[:, 0].tolist() == [0.0, 1.0, 4.0]


def test_the_examples_frames_are_copies() -> None:
    sys.path.insert(0, str(EXAMPLES))
    import chirp

    sys.path.remove(str(EXAMPLES))
    frames = torch.tensor([[-1, -1], [3, 4], [5, 6]])
    made = chirp.Chirps(FrameWindows(None))
    assert made.on_rows(StepRows(0, None, {FRAMES: frames})) == []
    frames.zero_()
    (payload,) = made.on_end()
    assert payload.fields["frames"].tensor.tolist() == [[3, 4], [5, 6]]
