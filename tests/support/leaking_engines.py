"""Run by test_faults_leaks_engines.py in a process of its own; prints one JSON object.

Two real engines with shared memory between them, and requests of 1 MiB that finish, fail and are
aborted, without the garbage collector.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from pathlib import Path

import msgspec

from antiphon.connector.runs import new_run_token
from antiphon.core.options import ConnectorSpec, InEdge, OutEdge
from antiphon.payload.ref import Ref
from antiphon.stage.messages import Deliver, Discard, Step, Used
from leftovers import run_files
from memory import Resident
from real_edge import EDGE, ROOM_BYTES
from tiny import HIDDEN, Driven, tiny_model, tiny_spec
from watched import alive, uncollected


class Pair:
    """A producer and a consumer."""

    def __init__(self, model: str, run: str) -> None:
        out = OutEdge(EDGE, "real_edge:BigOut")
        in_ = InEdge(EDGE, "real_edge:BigIn", {"width": HIDDEN})
        shm = ConnectorSpec("shm", run, ROOM_BYTES)
        producer = tiny_spec("producer", model, run, outputs=(out,))
        consumer = tiny_spec("consumer", model, run, inputs=(in_,), enable_prompt_embeds=True)
        self.producer = Driven(msgspec.structs.replace(producer, connector=shm))
        self.consumer = Driven(msgspec.structs.replace(consumer, connector=shm))

    def ref(self, uid: str, *, broken: bool = False) -> Ref:
        """Submit to both; what the producer has stored."""
        sampling = {"max_tokens": 1}
        params = {"broken": broken}
        self.consumer.submit(uid, waits_for=EDGE, sampling=sampling, params=params)
        self.producer.submit(uid, [1, 2, 3], edges=(EDGE,), sampling=sampling)
        self.producer.run()
        (ref,) = self.producer.refs()
        assert isinstance(ref, Ref)
        return ref

    def settle(self) -> None:
        """The producer hears what was used up; what has been reported is forgotten."""
        self.consumer.run()
        for event in self.consumer.events:
            for keys in event.used.values() if isinstance(event, Step) else ():
                self.producer.host.handle(Used(EDGE, keys))
        self.producer.run()
        for stage in (self.producer, self.consumer):
            stage.clear()
            stage._prefills.clear()


def finished(pair: Pair, uid: str) -> None:
    ref = pair.ref(uid)
    pair.consumer.host.handle(Deliver([(uid, ref)]))
    pair.consumer.run()
    assert [end.finish for end in pair.consumer.endings(uid)] == ["length"]


def failed(pair: Pair, uid: str) -> None:
    ref = pair.ref(uid, broken=True)
    pair.consumer.host.handle(Deliver([(uid, ref)]))
    pair.consumer.run()
    assert [end.finish for end in pair.consumer.endings(uid)] == ["error"]


def aborted(pair: Pair, uid: str) -> None:
    ref = pair.ref(uid)
    assert ref.key is not None
    pair.consumer.abort(uid)
    pair.producer.host.handle(Discard([ref.key]))


def main(requests: int) -> None:
    run = new_run_token()
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(tiny_model(Path(folder)), run)
        lives = (finished, failed, aborted)
        for number, life in enumerate(lives):
            life(pair, f"warm{number}")
            pair.settle()
        memory, outlived = Resident(requests), 0
        with uncollected():
            for number in range(requests):
                lives[number % len(lives)](pair, f"r{number}")
                pair.settle()
                outlived += len(alive())
                memory.note()
        pair.producer.assert_empty()
        pair.consumer.assert_empty()
        entries = pair.producer.inspect().connector_entries
        gc.collect()
        pair.consumer.host.stop()
        pair.producer.host.stop()
    left = sum(run in path.name for path in run_files())
    print(
        json.dumps(
            {
                "growth": memory.growth,
                "outlived": outlived,
                "entries": entries,
                "files": left,
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
