"""Messages between orchestrator and stage: both ends are ours, so damage is a defect or a death.

Whatever comes is a message, or msgspec's error, or the end of the other side: nothing else, for
those are what both ends are ready for.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import ErrorInfo
from antiphon.payload.ref import FieldSpec, Layout, Ref
from antiphon.stage.messages import (
    Abort,
    Command,
    Deliver,
    Event,
    Failed,
    Output,
    Step,
    Submit,
    Tensor,
    Update,
    Wake,
)
from antiphon.stage.wire import Channel
from fuzzing import bounded, campaign, damaged

REF = Ref("a.0", "codes", 2, True, "k", 9, (FieldSpec("ids", Layout.PER_TOKEN, "int32", (3,)),), 1)
encode: Callable[[object], bytes] = msgspec.msgpack.encode
COMMANDS = [
    encode(Submit("a", [1, 2], {"max_tokens": 3, "stop": ["x"]}, ("e",), "w", 1.5, {"x": True}, 2)),
    encode(Deliver([("a", REF), ("b", Ref("c", "e", 0, end=True))])),
    encode(Update("s", 2, UpdateKind.WINDOW, [3], 8, {"temperature": 0.5})),
    encode(Abort(["a", "b"], 7)),
    encode(Wake(["weights"], 9)),
]
EVENTS = [
    encode(Step([Output("a", [1], Tensor("float32", (2, 3), 0), "stop", 5)], [REF])),
    encode(Failed(ErrorInfo("stage_start", "no model"))),
]


def receive(incoming: object, head: bytes, *frames: bytes) -> None:
    """What the other end makes of this; nothing comes after it."""
    left, right = socket.socketpair()
    sender, receiver = Connection(left.detach()), Connection(right.detach())
    channel: Channel[object] = Channel(receiver, incoming)
    try:
        for part in (head, *frames):
            sender.send_bytes(part)
        sender.close()
        with bounded(len(head)):
            channel.receive()
    except (msgspec.MsgspecError, EOFError, OSError):
        pass
    finally:
        sender.close()
        channel.close()


@campaign(5)
@given(damaged(COMMANDS), st.sampled_from([0, 0, 0, 1, (1 << 32) - 1]))
def test_damaged_commands(message: bytes, frames: int) -> None:
    receive(Command, frames.to_bytes(4, "little") + message)


@campaign(5)
@given(damaged(EVENTS), st.sampled_from([0, 0, 0, 1, (1 << 32) - 1]))
def test_damaged_events(message: bytes, frames: int) -> None:
    receive(Event, frames.to_bytes(4, "little") + message)


@campaign(2)
@given(st.lists(st.binary(max_size=12), min_size=1, max_size=4))
def test_any_frames(parts: list[bytes]) -> None:
    receive(Event, *parts)


def test_lists_in_lists() -> None:
    """An unknown key is skipped, however deep it is."""
    receive(Event, bytes(4) + b"\x82\xa4type\xa7Stopped\xa1z" + b"\x91" * 2000 + b"\0")
