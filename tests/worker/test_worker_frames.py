"""Frames lie at the index of their output token, and slots are those of live requests."""

from __future__ import annotations

from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from antiphon.errors import InvalidRequestError, TopologyError
from antiphon.payload.adapters import FRAMES, INPUT_IDS, layer_output
from antiphon.worker.capabilities import Draw
from antiphon.worker.device import CpuOps
from antiphon.worker.frame_sampling import FrameSampling
from antiphon.worker.frames import Frames, FrameTable
from antiphon.worker.step_outputs import StepOutputs

CPU = CpuOps()
GREEDY = FrameSampling()


class Counting:
    """Frames of a token t: (t, first hidden value of its row)."""

    def predict_frames(
        self, hidden: torch.Tensor, token_ids: torch.Tensor, draw: Draw
    ) -> torch.Tensor:
        return torch.stack([token_ids, hidden[:, 0].long()], 1)

    def embed_frames(self, frames: torch.Tensor) -> torch.Tensor:
        return frames.float()


def frames(slots: int = 2) -> Frames:
    return Frames(Counting(), FrameTable(slots, 8, 2, CPU), 2)


def made(store: Frames, *places: tuple[str, int]) -> None:
    """The frame of output i is (10 i, number of the request)."""
    hidden = torch.tensor([[float(ord(uid))] for uid, _ in places])
    store.make(places, hidden, torch.tensor([10 * index for _, index in places]))


def test_a_frame_is_found_by_its_index() -> None:
    store = frames()
    for uid in "ab":
        store.add(uid, GREEDY)
    made(store, ("a", 0), ("b", 3))
    made(store, ("a", 1))
    assert store.embed([("a", 1), ("b", 3), ("a", 0)]).tolist() == [[10, 97], [30, 98], [0, 97]]
    rows = store.rows([("a", 2, 1), ("b", 4, 3)], 6)
    assert rows.tolist() == [[-1, -1], [-1, -1], [10, 97], [-1, -1], [30, 98], [-1, -1]]
    assert store.rows([], 1).tolist() == [[-1, -1]]


def test_nothing_is_made_of_nothing() -> None:
    store = frames()
    store.make([], torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))
    assert not store.uids


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_slots_are_those_of_live_requests(moves: list[tuple[bool, int]]) -> None:
    """There may be more than slots: preempted ones keep theirs. A known one keeps its frames."""
    store, live = frames(slots=2), set()
    for begins, number in moves:
        uid = chr(97 + number)
        if begins:
            store.add(uid, GREEDY)
            if uid not in live:
                made(store, (uid, number % 8))
            live.add(uid)
        else:
            store.drop(uid)
            live.discard(uid)
        store.check_integrity()
        assert store.uids == live
        for other in live:
            index = (ord(other) - 97) % 8
            assert store.embed([(other, index)]).tolist() == [[10 * index, ord(other)]]


# --- sampling -------------------------------------------------------------------------------------


def of(
    uid: str = "u", temperature: float = 1.0, seed: int | None = None, **extra: object
) -> object:
    params = SimpleNamespace(temperature=temperature, seed=seed, extra_args=extra or None)
    return FrameSampling.of(uid, params)


def test_codes_are_drawn_if_tokens_are() -> None:
    assert of(temperature=0.0) == GREEDY
    assert of(seed=5) == FrameSampling(5, 1.0, 50, 0.8)
    assert of(code_temperature=0.0) == GREEDY
    assert of(seed=5, code_top_k=3, code_top_p=1.0, code_temperature=0.5) == FrameSampling(
        5, 0.5, 3, 1.0
    )


def test_without_a_seed_lots_are_the_requests_own() -> None:
    assert of("a") == of("a")
    assert of("a") != of("b")


@pytest.mark.parametrize(
    "extra",
    [{"code_top_p": 0}, {"code_top_k": -1}, {"code_temperature": "x"}, {"code_top_k": True}],
)
def test_wrong_values_are_named(extra: dict[str, object]) -> None:
    (key,) = extra
    with pytest.raises(InvalidRequestError, match=key):
        of(**extra)


def drawn(sampling: list[FrameSampling], indices: list[int], logits: torch.Tensor) -> list[int]:
    draw = FrameSampling.draw(sampling, indices, 3, CPU)
    chosen: list[int] = draw(1, logits).tolist()
    return chosen


def test_lots_depend_on_seed_and_index_alone() -> None:
    logits = torch.zeros(1, 1000)
    one = FrameSampling(7, top_k=0, top_p=1.0)
    alone = drawn([one], [3], logits)
    others = [FrameSampling(8, top_k=0, top_p=1.0), one, GREEDY]
    assert drawn(others, [3, 3, 3], logits.expand(3, -1))[1] == alone[0]
    assert drawn([one], [4], logits) != alone
    assert drawn(others, [3, 3, 3], logits.expand(3, -1))[0] != alone[0]


def test_codes_of_a_frame_have_lots_of_their_own() -> None:
    draw = FrameSampling.draw([FrameSampling(7, top_k=0, top_p=1.0)], [0], 3, CPU)
    assert draw(1, torch.zeros(1, 1000)).tolist() != draw(2, torch.zeros(1, 1000)).tolist()


def test_greedy_requests_are_greedy_in_any_company() -> None:
    logits = torch.tensor([[0.0, 5.0, 0.0], [4.0, 0.0, 0.0]])
    assert drawn([GREEDY, FrameSampling(1)], [0, 0], logits)[0] == 1
    assert drawn([GREEDY, GREEDY], [0, 0], logits) == [1, 0]


def test_chances_are_the_softmax_s() -> None:
    """Over many seeds the share of each code is its probability; top-k and top-p cut some off."""
    chances = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = chances.log().expand(2000, -1)
    for top_k, top_p, expected in (
        (0, 1.0, chances),
        (2, 1.0, torch.tensor([0.625, 0.375, 0.0, 0.0])),
        (0, 0.75, torch.tensor([0.625, 0.375, 0.0, 0.0])),  # 0.5 is less, 0.8 passes it
        (0, 0.45, torch.tensor([1.0, 0.0, 0.0, 0.0])),
    ):
        lots = [FrameSampling(seed, top_k=top_k, top_p=top_p) for seed in range(2000)]
        found = torch.bincount(torch.tensor(drawn(lots, [0] * 2000, logits)), minlength=4) / 2000
        assert float((found - expected).abs().max()) < 0.04


# --- side outputs of the runner -------------------------------------------------------------------


def test_what_the_runner_provides_is_told_from_what_the_model_returns() -> None:
    outputs = StepOutputs(["double", layer_output(12), INPUT_IDS, layer_output(0), FRAMES])
    assert (outputs.layers, outputs.embeddings) == ((12,), True)
    assert outputs.of_model == {"double"}
    assert (outputs.input_ids, outputs.frames) == (True, True)
    rows, ids = [torch.ones(2, 3)], torch.tensor([4, 5, 6], dtype=torch.int32)
    outputs.keep_embeddings(torch.zeros(2, 3))
    made_ = outputs.fields(2, ids, rows, None)
    assert made_.keys() == {"layer.0", "layer.12", INPUT_IDS}
    assert made_[INPUT_IDS].tensor.tolist() == [4, 5]
    assert torch.equal(made_["layer.12"].tensor, rows[0])
    assert torch.equal(made_["layer.0"].tensor, torch.zeros(2, 3))
    assert "layer.0" not in outputs.fields(2, ids, rows, None)  # those were the last step's


def test_a_layer_must_be_a_number() -> None:
    with pytest.raises(TopologyError, match=r"layer\.last"):
        StepOutputs(["layer.last"])
