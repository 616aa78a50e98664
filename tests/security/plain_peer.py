"""The other process of test_security_pickle.py: a stage's channel and connector, without an engine.

Whatever chunk it is told of it takes, decodes, and sends back: as a frame, and as a chunk.
"""

from __future__ import annotations

import pickle
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from antiphon.connector.shm import ShmConnector
from antiphon.errors import ErrorInfo
from antiphon.payload.ref import Ref
from antiphon.payload.wire import decode, encode
from antiphon.stage.messages import Command, Deliver, Discard, Failed, Output, Step, Stop, Tensor
from antiphon.stage.wire import Channel
from no_pickle import Watch


def main(descriptor: str, run: str, folder: str) -> None:
    connection: Connection[object, object] = Connection(int(descriptor))
    channel: Channel[Command] = Channel(connection, Command)
    connector = ShmConnector(run, 1 << 24)
    Watch(Path(folder)).arm()
    while True:
        message, _ = channel.receive()
        match message:
            case Deliver():
                for uid, ref in message.items:
                    channel.send(*_sent_back(connector, uid, ref))
            case Discard():  # a control: is pickle really out of order?
                try:
                    pickle.loads(pickle.dumps({}))  # noqa: S301
                except RuntimeError as error:
                    channel.send(Failed(ErrorInfo("internal", str(error))))
            case Stop():
                connector.close()
                return


def _sent_back(connector: ShmConnector, uid: str, ref: Ref) -> tuple[Step, list[memoryview]]:
    assert ref.key is not None
    payload = decode(connector.take(ref.key), expect=ref.fields)
    rows = payload.fields["rows"].tensor
    frame = memoryview(rows.numpy()).cast("B")
    size = connector.put(f"{ref.key}/back", encode(payload))
    back = Ref(uid, ref.edge, ref.seq, True, f"{ref.key}/back", size, payload.specs())
    return Step([Output(uid, tensor=Tensor("float32", tuple(rows.shape), 0))], [back]), [frame]


if __name__ == "__main__":
    main(*sys.argv[1:])
