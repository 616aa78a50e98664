"""Messages and raw tensors between orchestrator and stage, over a real pair of sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

import msgspec
import pytest

from antiphon.core.budget import EdgeBudget, EdgeLimits
from antiphon.core.gate import Gate
from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import ErrorInfo
from antiphon.observe.families import Family, Sample
from antiphon.payload.ref import FieldSpec, Layout, Ref
from antiphon.pipeline.audio import AudioClip
from antiphon.stage.messages import (
    Abort,
    Aborted,
    Acknowledged,
    Command,
    Deliver,
    Discard,
    Event,
    Failed,
    Inspect,
    Inspection,
    Interrupt,
    Interrupted,
    Measure,
    Measured,
    Output,
    Ping,
    Pong,
    Ready,
    Sleep,
    Starting,
    Step,
    Stop,
    Stopped,
    Submit,
    Tensor,
    Update,
    Used,
    Wake,
)
from antiphon.stage.wire import Channel
from antiphon.testing.clock import ManualClock

REF = Ref("a.0", "codes", 2, True, "k", 9, (FieldSpec("ids", Layout.PER_TOKEN, "int32", (3,)),), 1)
COMMANDS: list[Command] = [
    Submit("a", [1, 2], {"max_tokens": 3, "stop_token_ids": [4]}, ("e",), "w", 1.5, {"x": True}, 2),
    Submit("s", [1], {"max_tokens": 3}, session=True, epoch=1),
    Submit("h", [1, 5], {"max_tokens": 3}, audio=(AudioClip(bytes(4000), 8000, "f32"),)),
    Deliver([("a", REF), ("b", Ref("c", "e", 0, end=True))]),
    Used("codes", ["k", "l"]),
    Update("s", 2, UpdateKind.WINDOW, [3], 8, {"temperature": 0.5}),
    Interrupt("s", 6),
    Discard(["k"]),
    Abort(["a", "b"], 7),
    Sleep(1, 8),
    Wake(None, 9),
    Wake(["weights"], 9),
    Inspect(10),
    Measure(11),
    Ping(),
    Stop(),
]
EVENTS: list[Event] = [
    Starting("loading"),
    Ready(8, 9, 32, "0.32.0"),
    Step([Output("a", [1], Tensor("float32", (2, 3), 0), "stop", 5, ErrorInfo("x", "y"))], [REF]),
    Step([Output("s", epoch=2, segment_finish="interrupt")], [], {"codes": ["k"]}),
    Interrupted("s", 6),
    Aborted(["a"], 7),
    Acknowledged(8, 1 << 40, None),
    Inspection(1, 2, 3, 4, 5, 6, 7, 8, ErrorInfo("integrity", "no")),
    Inspection(
        1,
        *range(2, 9),
        edges={"codes": EdgeBudget(EdgeLimits(), ManualClock()).statistics()},
        gate=Gate(ManualClock()).statistics(),
    ),
    Measured(1, 2, Gate(ManualClock()).statistics()),
    Pong(0.25),
    Measured(
        1,
        2,
        Gate(ManualClock()).statistics(),
        edges={"codes": EdgeBudget(EdgeLimits(), ManualClock()).statistics()},
        engine=[Family("vllm:x", "help", "gauge", [Sample("vllm:x", {"le": "1"}, 0.5)])],
    ),
    Failed(ErrorInfo("stage_start", "no model")),
    Stopped(),
]


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:  # type: ignore[type-arg]
    left, right = socket.socketpair()
    pair = Connection(left.detach()), Connection(right.detach())
    yield pair
    for end in pair:
        if not end.closed:
            end.close()


@pytest.fixture
def down(ends):  # type: ignore[no-untyped-def]
    """Orchestrator's end and stage's end of the commands."""
    return Channel(ends[0], Event), Channel(ends[1], Command)


def test_every_command_and_event_crosses_unchanged(down) -> None:  # type: ignore[no-untyped-def]
    orchestrator, stage = down
    for command in COMMANDS:
        orchestrator.send(command)
        assert stage.receive() == (command, [])
    for event in EVENTS:
        stage.send(event)
        assert orchestrator.receive() == (event, [])


def test_every_kind_of_message_is_tried() -> None:
    assert {type(c) for c in COMMANDS} == set(Command.__args__)
    assert {type(e) for e in EVENTS} == set(Event.__args__)


def test_frames_arrive_beside_their_message(down) -> None:  # type: ignore[no-untyped-def]
    orchestrator, stage = down
    frames = [memoryview(b"first"), memoryview(bytes(range(256)) * 4), memoryview(b"\0")]
    stage.send(Stopped(), frames)
    stage.send(Starting("next"))
    assert orchestrator.receive() == (Stopped(), [bytes(frame) for frame in frames])
    assert orchestrator.receive() == (Starting("next"), [])


def test_a_frame_larger_than_the_sockets_buffer(down) -> None:  # type: ignore[no-untyped-def]
    orchestrator, stage = down
    frame = bytes(range(256)) * (1 << 14)  # 4 MiB
    writer = threading.Thread(target=stage.send, args=(Stopped(), [memoryview(frame)]))
    writer.start()
    _, (received,) = orchestrator.receive()
    writer.join()
    assert received == frame


def test_an_empty_frame_is_a_frame(down) -> None:  # type: ignore[no-untyped-def]
    """A stage may finish with a waveform of no samples."""
    orchestrator, stage = down
    stage.send(Stopped(), [memoryview(b""), memoryview(b"x")])
    assert orchestrator.receive() == (Stopped(), [b"", b"x"])


def test_the_end_of_the_other_side_is_noticed(down) -> None:  # type: ignore[no-untyped-def]
    orchestrator, stage = down
    stage.send(Starting("last"))
    stage.close()
    assert orchestrator.receive()[0] == Starting("last")
    with pytest.raises((EOFError, OSError)):
        orchestrator.receive()
    with pytest.raises(BrokenPipeError):
        orchestrator.send(Stop())


def test_an_end_in_the_middle_of_a_message(ends) -> None:  # type: ignore[no-untyped-def]
    """Killed while it wrote: never a message made of what had arrived."""
    channel: Channel[Event] = Channel(ends[0], Event)
    ends[1].send_bytes((2).to_bytes(4, "little") + msgspec.msgpack.encode(Stopped()))
    ends[1].send_bytes(b"one of two")
    ends[1].close()
    with pytest.raises((EOFError, OSError)):
        channel.receive()


def test_what_is_no_message_is_refused(ends) -> None:  # type: ignore[no-untyped-def]
    channel: Channel[Command] = Channel(ends[0], Command)
    encode = msgspec.msgpack.encode
    for raw in (b"\xc1", encode({"type": "Unknown"}), encode(Stopped())):
        ends[1].send_bytes((0).to_bytes(4, "little") + raw)
        with pytest.raises(msgspec.DecodeError):
            channel.receive()
