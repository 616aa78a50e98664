"""What may be said of a KV hand-off, and which blocks hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.kv_handoff import KvTransfer, cut_blocks, num_blocks
from antiphon.errors import TopologyError

# --- criteria ---------------------------------------------------------------------------------

BAD_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown type": ({"type": "prefill"}, "'prefill' is unknown; use one of prefill_finished, "),
    "type of another case": ({"type": "Special_Token"}, "is unknown; use one of"),
    "no type": ({"type": None}, "None is unknown; use one of"),
    "type is a list": ({"type": ["special_token"]}, "is unknown; use one of"),
    "no token": ({"type": "special_token"}, "token_id is None; special_token needs a token id"),
    "token is text": ({"type": "special_token", "token_id": "9"}, "token_id is '9'; .* needs"),
    "token is a fraction": (
        {"type": "special_token", "token_id": 9.0},
        "token_id is 9.0; .* needs",
    ),
    "token is a truth": ({"type": "special_token", "token_id": True}, "token_id is True; .* needs"),
    "negative token": ({"type": "special_token", "token_id": -1}, "token_id is -1; .* needs"),
    "token with prefill": (
        {"type": "prefill_finished", "token_id": 9},
        "no meaning with prefill_finished; remove it",
    ),
    "token 0 with finish": (
        {"type": "request_finished", "token_id": 0},
        "no meaning with request_finished; remove it",
    ),
    "stop is a number": (
        {"type": "prefill_finished", "stop_after_transfer": 1},
        "stop_after_transfer is 1; give true or false",
    ),
    "stop is nothing": (
        {"type": "prefill_finished", "stop_after_transfer": None},
        "stop_after_transfer is None; give true or false",
    ),
    "park is text": ({"type": "prefill_finished", "park": "no"}, "park is 'no'; give true or"),
    "park is nothing": ({"type": "request_finished", "park": None}, "park is None; give true or"),
}


@pytest.mark.parametrize("case", BAD_VALUES)
def test_a_criterion_that_makes_no_sense_is_refused_at_construction(case: str) -> None:
    data, sentence = BAD_VALUES[case]
    with pytest.raises(TopologyError, match=f"kv .*{sentence}"):
        KvTransfer(**data)


@pytest.mark.parametrize("case", BAD_VALUES)
def test_it_is_refused_as_plain_data_too(case: str) -> None:
    data, sentence = BAD_VALUES[case]
    with pytest.raises(TopologyError, match=f"kv .*{sentence}"):
        KvTransfer.parse(data)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"type": "prefill_finished", "token": 3}, "no key 'token'; its keys are type, token_id"),
        ({"type": "prefill_finished", "Park": True}, "no key 'Park'; its keys are"),
        ({"type": "prefill_finished", 1: True}, "no key 1; its keys are"),
        ({}, "has no type; use one of prefill_finished, special_token, request_finished"),
        ({"park": True}, "has no type; use one of"),
        (None, "kv is None; give a mapping"),
        ("prefill_finished", "kv is 'prefill_finished'; give a mapping"),
        ([("type", "prefill_finished")], "give a mapping"),
    ],
)
def test_plain_data_must_have_the_keys(data: Any, sentence: str) -> None:
    with pytest.raises(TopologyError, match=sentence):
        KvTransfer.parse(data)


def test_an_unknown_keyword_is_an_error_at_construction() -> None:
    with pytest.raises(TypeError, match="token"):
        KvTransfer("prefill_finished", token=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "data",
    [
        {"type": "prefill_finished"},
        {"type": "special_token", "token_id": 0},
        {"type": "request_finished", "stop_after_transfer": False, "park": False},
    ],
)
def test_plain_data_makes_the_same_criterion_as_the_constructor(data: dict[str, Any]) -> None:
    transfer = KvTransfer.parse(data)
    assert transfer == KvTransfer(**data)
    assert transfer.stop_after_transfer is data.get("stop_after_transfer", True)
    assert transfer.park is data.get("park", True)


# --- blocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "size", "blocks"),
    [(0, 4, 0), (1, 4, 1), (3, 4, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2), (9, 1, 9), (1, 128, 1)],
)
def test_blocks_that_hold_some_tokens(length: int, size: int, blocks: int) -> None:
    assert num_blocks(length, size) == blocks


@pytest.mark.parametrize(("length", "size"), [(-1, 4), (4, 0), (4, -4)])
def test_sizes_that_cannot_be(length: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"{length} tokens in blocks of {size}"):
        num_blocks(length, size)


def test_each_group_is_cut_to_its_own_block_size() -> None:
    ids = ([7, 3, 9, 1], [20, 21], [5])
    assert cut_blocks(ids, [4, 8, 16], 9) == ((7, 3, 9), (20, 21), (5,))
    assert cut_blocks(ids, [4, 8, 16], 8) == ((7, 3), (20,), (5,))


@given(data=st.data(), length=st.integers(1, 300))
def test_cut_blocks_cover_the_length_and_no_more(data: st.DataObject, length: int) -> None:
    sizes = data.draw(st.lists(st.sampled_from([1, 3, 16, 128]), min_size=1, max_size=4))
    ids = [
        data.draw(st.lists(st.integers(0, 999), min_size=-(-length // size), max_size=310))
        for size in sizes
    ]
    for cut, all_ids, size in zip(cut_blocks(ids, sizes, length), ids, sizes, strict=True):
        assert list(cut) == all_ids[: len(cut)]
        assert len(cut) * size >= length
        assert (len(cut) - 1) * size < length


@pytest.mark.parametrize("block_ids", [[[1, 2], [3]], [[1, 2, 3], []]])
def test_a_group_without_enough_blocks_is_an_error(block_ids: Sequence[Sequence[int]]) -> None:
    """C120: rather than a snapshot of less than it says."""
    with pytest.raises(ValueError, match=r"9 tokens need \d blocks of \d+, there are"):
        cut_blocks(block_ids, [4, 16], 9)


def test_groups_and_block_sizes_must_agree_in_number() -> None:
    with pytest.raises(ValueError, match="shorter"):
        cut_blocks([[1], [2]], [4], 3)
