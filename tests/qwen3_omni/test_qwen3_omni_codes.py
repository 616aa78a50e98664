"""The edge between talker and code2wav, without engines: frames become windows of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.frames import Framing
from antiphon.errors import AdapterError, TopologyError
from antiphon.models.frame_codes import CODES, LEFT, CodeWindows
from antiphon.models.qwen3_omni.codes import CodesInput, CodesOutput
from antiphon.models.qwen3_omni.tiny import CODE_GROUPS, CODEBOOK, CODEC_EOS
from antiphon.models.qwen3_omni.topology import TOPOLOGY
from antiphon.payload.adapters import FRAMES, StageContext, StepRows
from antiphon.payload.types import Payload, per_token

DECLARED = next(edge for edge in TOPOLOGY.edges if edge.name == "codes").options


def context(
    folder: str, *, stream: bool = True, options: Mapping[str, Any] = DECLARED
) -> StageContext:
    return StageContext("stage", "codes", folder, options, stream)


def frames_of(count: int) -> torch.Tensor:
    """Frames that all differ, [count, groups]."""
    generator = torch.Generator().manual_seed(count)
    return torch.randint(CODEBOOK, (count, CODE_GROUPS), generator=generator, dtype=torch.int32)


def send(adapter: CodeWindows, frames: torch.Tensor, sizes: Sequence[int] = ()) -> list[Payload]:
    """What leaves when a prompt's rows come first, without frames but for the last one's."""
    prompt = torch.full((6, CODE_GROUPS), -1, dtype=torch.int32)
    rows = torch.cat([prompt, frames])
    sent: list[Payload] = []
    first = 0
    for size in [*sizes, len(rows)]:
        part = rows[first : first + size]
        if len(part):
            sent += adapter.on_rows(StepRows(first, None, {FRAMES: part}))
        first += size
    return [*sent, *adapter.on_end()]


def new_frames(sent: Sequence[Payload]) -> torch.Tensor:
    parts = [p.fields[CODES].tensor[int(p.meta[LEFT]) :] for p in sent]
    return torch.cat(parts)


def test_a_stream_is_cut_as_the_topology_says(checkpoint: str) -> None:
    """The first windows are short, and each has the frames before it as context."""
    adapter = CodesOutput(context(checkpoint)).open("r", {})
    frames = frames_of(90)
    sent = send(adapter, frames, sizes=[7] + [1] * 40)
    new = [len(p.fields[CODES].tensor) - int(p.meta[LEFT]) for p in sent]
    assert new == [4, 8, 16, 25, 25, 12]
    assert [p.meta[LEFT] for p in sent] == [0, 4, 12, 25, 25, 25]
    assert torch.equal(new_frames(sent), frames)
    begin = 0
    for payload, count in zip(sent, new, strict=True):
        left = int(payload.meta[LEFT])
        assert torch.equal(payload.fields[CODES].tensor, frames[begin - left : begin + count])
        begin += count


def test_a_full_edge_carries_all_frames_at_once(checkpoint: str) -> None:
    adapter = CodesOutput(context(checkpoint, stream=False)).open("r", {})
    frames = frames_of(90)
    (only,) = send(adapter, frames, sizes=[9, 1, 1])
    assert torch.equal(only.fields[CODES].tensor, frames)
    assert only.meta == {LEFT: 0}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "full"])
def test_the_frame_of_the_end_is_dropped(checkpoint: str, stream: bool) -> None:
    adapter = CodesOutput(context(checkpoint, stream=stream)).open("r", {})
    end = torch.tensor([[CODEC_EOS, *[0] * (CODE_GROUPS - 1)]], dtype=torch.int32)
    frames = frames_of(5)
    assert torch.equal(new_frames(send(adapter, torch.cat([frames, end]))), frames)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "full"])
def test_without_a_frame_nothing_leaves(checkpoint: str, stream: bool) -> None:
    """An explicit empty end follows, which the stage sends."""
    adapter = CodesOutput(context(checkpoint, stream=stream)).open("r", {})
    assert send(adapter, frames_of(0)) == []


SIZES = st.lists(st.integers(0, 9), max_size=20)


@given(count=st.integers(0, 60), sizes=SIZES, initial=st.integers(1, 9), left=st.integers(0, 9))
def test_new_frames_are_the_stream_however_it_comes(
    count: int, sizes: list[int], initial: int, left: int
) -> None:
    framing = Framing(initial=initial, steady=9, ramp=1.5, left=left)
    frames = frames_of(count)
    sent = send(CodeWindows(framing, CODEC_EOS), frames, sizes)
    assert torch.equal(new_frames(sent), frames) if count else sent == []


def test_a_wrong_option_is_the_authors_mistake(checkpoint: str) -> None:
    with pytest.raises(TopologyError, match="edge codes: steady_frames"):
        CodesOutput(context(checkpoint, options={"steady_frames": 0}))


def test_a_prompt_is_the_codes_frame_by_frame(checkpoint: str) -> None:
    frames = frames_of(7)
    payload = Payload({CODES: per_token(frames)}, {LEFT: 3})
    plan = CodesInput(context(checkpoint)).on_payload(payload, last=False).plan
    assert plan is not None
    assert plan.token_ids == tuple(frames.flatten().tolist())
    assert plan.extra == {LEFT: 3}


def payload(codes: torch.Tensor, left: object = 0) -> Payload:
    return Payload({CODES: per_token(codes)}, {LEFT: left})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "wrong",
    [
        Payload({}),
        payload(frames_of(3).long()),
        payload(frames_of(3)[:, 1:]),
        payload(frames_of(3)[0]),
        payload(frames_of(0)),
        payload(frames_of(3) - CODEBOOK),
        payload(frames_of(3) + CODEBOOK),
        payload(frames_of(3), left=3),
        payload(frames_of(3), left=-1),
        payload(frames_of(3), left=True),
        payload(frames_of(3), left="1"),
    ],
)
def test_what_cannot_be_decoded_is_an_error_of_its_request(checkpoint: str, wrong: Payload) -> None:
    with pytest.raises(AdapterError):
        CodesInput(context(checkpoint)).on_payload(wrong, last=True)
