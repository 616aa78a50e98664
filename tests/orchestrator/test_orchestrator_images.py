"""Pictures as a modality: from a stage's tensor to the caller's array and file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    OutputPathError,
    StageError,
)
from antiphon.orchestrator.api import ImageChunk, OmniEvent
from antiphon.pipeline.topology import Entry
from antiphon.stage.messages import Output, Step, Tensor
from antiphon.testing.fake_stage import Answer
from kv_pipelines import PAINTER, PAINTING, SCENE
from routing import (
    Routing,
    drain,
    outcomes,
    parts_of,
    picture,
    pictures_of,
    reply_of,
    settle,
    uid,
)
from sample_pipeline import CODES, TOPOLOGY


def paint(pixels: np.ndarray) -> list[OmniEvent | AntiphonError]:
    """The events of a request whose one picture is this."""
    routing = Routing(PAINTING)
    live = routing.submit(entry="draw")
    routing["painter"].image(uid(live), pixels)
    routing.acknowledge_all()
    routing.assert_empty()
    return drain(live)


def test_a_picture_is_given_as_it_was_made() -> None:
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    events = paint(pixels)
    (chunk,) = [event for event in events if isinstance(event, ImageChunk)]
    (image,) = reply_of(events).images
    assert chunk.index == 0
    assert chunk.image is image
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, pixels)
    image[0, 0, 0] = 9  # the caller's own


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_fractions_become_levels(dtype: type) -> None:
    """Rounded, and clipped beyond 0 and 1."""
    values = np.array([-1.0, 0.0, 0.25, 0.999, 1.0, 7.0], dtype).reshape(1, 2, 3)
    (image,) = reply_of(paint(values)).images
    assert image.reshape(-1).tolist() == [0, 0, 64, 255, 255, 255]


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.zeros((2, 2), np.uint8), r"shape \[2, 2\]; it has to be \[height, width, 3\]"),
        (np.zeros((3, 2, 2), np.uint8), r"shape \[3, 2, 2\]"),
        (np.zeros((1, 2, 2, 3), np.uint8), r"shape \[1, 2, 2, 3\]"),
        (np.zeros((0, 2, 3), np.uint8), r"shape \[0, 2, 3\]"),
        (np.zeros((2, 2, 3), np.int64), "dtype int64; use uint8, or float32"),
        (np.full((2, 2, 3), np.nan, np.float32), "not finite"),
    ],
)
def test_a_tensor_that_is_no_picture_ends_its_request(pixels: np.ndarray, message: str) -> None:
    (outcome,) = outcomes(paint(pixels))
    assert type(outcome) is StageError
    with pytest.raises(StageError, match=message):
        raise outcome


def test_a_picture_that_was_cut_off_ends_its_request() -> None:
    routing = Routing(PAINTING)
    live, other = routing.submit(entry="draw"), routing.submit(entry="draw")
    output = Output(uid(live), tensor=Tensor("uint8", (2, 2, 3), 0), finish="stop")
    routing["painter"].emit(Step([output], []), [bytes(11)])
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, StageError)
    assert outcomes(drain(other)) == []


def test_a_second_picture_of_one_unit_is_an_error() -> None:
    routing = Routing(PAINTING)
    live = routing.submit(entry="draw")
    routing["painter"].image(uid(live), picture(1), finish=None)
    routing["painter"].image(uid(live), picture(2))
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, StageError)


@pytest.mark.parametrize("first", ["painter", "code2wav"])
def test_what_nobody_wants_is_not_given(first: str) -> None:
    """The stage is on the way to what is asked for."""
    last = "code2wav" if first == "painter" else "painter"
    scene = replace(SCENE, consumer=first, shared=False)
    edges = (scene, replace(CODES, producer=first, consumer=last))
    stages = (PAINTING.stage("thinker"), PAINTER, TOPOLOGY.stage("code2wav"))
    entries = (Entry("draw", first, "sample:Draw"), PAINTING.entry("chat"))
    routing = Routing(replace(PAINTING, stages=stages, edges=edges, entries=entries))
    wanted = str(routing.topology.stage(last).output)
    live = routing.submit(entry="draw", modalities=(wanted,))
    for stage in (first, last):
        if stage == "painter":
            routing[stage].image(uid(live), picture(1))
        else:
            routing[stage].audio(uid(live), [0.5])
        if stage == first:
            routing[stage].ref(uid(live), "codes")
    events = drain(live)
    assert (len(pictures_of(events)), len(parts_of(events))) == ((0, 1), (1, 0))[last == "painter"]
    reply = reply_of(events)
    assert (len(reply.images), reply.audio is None) == ((0, False), (1, True))[last == "painter"]


def test_the_first_picture_is_timed() -> None:
    routing = Routing(PAINTING)
    live = routing.submit(n=2)
    routing["thinker"].ref(uid(live), "scene")
    for seconds, name, part in ((1.0, "thinker", 0), (2.0, "painter", 1), (4.0, "painter", 0)):
        routing.clock.advance(seconds)
        if name == "thinker":
            routing[name].tokens(uid(live), 1, finish="stop")
        else:
            routing[name].image(uid(live, part), picture(0, height=4, width=5))
    timings = reply_of(drain(live)).timings
    assert (timings.ttft_s, timings.ttfi_s, timings.total_s) == (1.0, 3.0, 7.0)
    assert (timings.ttfa_s, timings.audio_s, timings.continuity) == (None, 0.0, None)
    assert timings.stages["painter"].tokens == 2 * 4 * 5


def test_pictures_are_saved_as_png(tmp_path: Path) -> None:
    from PIL import Image

    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    reply = reply_of(paint(pixels))
    path = reply.save_image(tmp_path / "x.png")
    with Image.open(path) as image:
        assert (image.format, image.mode, image.size) == ("PNG", "RGB", (5, 4))
        np.testing.assert_array_equal(np.asarray(image), pixels)
    for index in (1, -1):
        with pytest.raises(InvalidRequestError, match=f"no picture {index}, it has 1"):
            reply.save_image(tmp_path / "y.png", index)
    with pytest.raises(InvalidRequestError, match="no audio"):
        reply.save(tmp_path / "y.wav")
    with pytest.raises(OutputPathError):
        reply.save_image(tmp_path / "no" / "y.png")
    assert [file.name for file in tmp_path.iterdir()] == ["x.png"]


async def test_an_automatic_pipeline_paints() -> None:
    answers = {"thinker": Answer(token_ids=(1, 2)), "painter": Answer(picture=(2, 3))}
    routing = Routing(PAINTING, answers)
    live = routing.submit(n=3)
    await live.ended.wait()
    reply = reply_of(drain(live))
    assert [image.shape for image in reply.images] == [(2, 3, 3)] * 3
    await settle()
    routing.assert_empty()
