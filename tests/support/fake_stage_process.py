"""A stage's process without an engine: `python -m fake_stage_process FD`.

All of it is `antiphon.stage.process` but the host: the real channel, the thread that listens and
answers `Ping`, the loop, the end with the orchestrator. Payloads are real files in shared memory.
The host answers by a script, which no request can hide from: an environment variable says how the
process starts, and the parameter "speaker" of a request what each stage does with it, such as
"talker=hold,code2wav=deaf".
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from antiphon.connector.registry import make_connector
from antiphon.core.gate import Gate
from antiphon.errors import ModelUnavailableError
from antiphon.payload.ref import Ref
from antiphon.stage.messages import (
    Abort,
    Aborted,
    Acknowledged,
    Command,
    Deliver,
    Discard,
    Inspect,
    Inspection,
    Measure,
    Measured,
    Output,
    Ready,
    Sleep,
    Starting,
    Step,
    Stop,
    Stopped,
    Submit,
    Tensor,
    Used,
    Wake,
)
from antiphon.stage.spec import StageSpec

START = "FAKE_STAGE_START"  # "slow", "never", "broken" or nothing
SLOW_START_S = 0.4
STEPS = 40  # of a request that is "slow"
STEP_S = 0.01  # between two of them
PAYLOAD = bytes(1000)
SAMPLES = 480  # of sound that a request brings

_SILENT = ("hold", "mute", "keep")  # what brings nothing

Send = Callable[[Any, Sequence[memoryview]], None]


@dataclass(slots=True)
class _Request:
    """`verb` is what the script says of it; `steps` are still to come before its last output."""

    submit: Submit
    verb: str
    steps: int = 0
    due: float = 0.0  # time.monotonic() of its next step
    ready: bool = True  # its input is there
    used: dict[str, list[str]] = field(default_factory=dict)


class StageHost:
    """Stands in for the real one; one step serves one request.

    What a script may say: hold (never answer), slow (a word at a time), late (at once, after as
    long), hang (never come out of a
    step), defect (raise in a step, no request's fault), garbage (say what cannot be read), deaf
    (lose its chunks), mute (lose what it brings), keep (never answer, nor acknowledge its
    abort), hoard (never
    say that its chunks are used up).
    """

    def __init__(self, spec: StageSpec, send: Send) -> None:
        self._spec = spec
        self._send = send
        self.stopped = False
        self._requests: dict[str, _Request] = {}
        self._start(os.environ.get(START, ""))
        connector = spec.connector
        self._connector = make_connector(connector.kind, connector.run, connector.max_bytes)
        send(Ready(max_model_len=1024, num_blocks=10, block_size=16, vllm_version="none"), [])

    def _start(self, how: str) -> None:
        self._send(Starting("loading the model"), [])
        match how:
            case "slow":
                threading.Event().wait(SLOW_START_S)
            case "never":
                threading.Event().wait()
            case "broken":
                raise ModelUnavailableError(f"{self._spec.model} lacks a tensor")

    # --- what the loop asks -------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return any(r.due <= time.monotonic() for r in self._running())

    def next_due(self) -> float | None:
        return min((r.due for r in self._running()), default=None)

    def _running(self) -> list[_Request]:
        return [r for r in self._requests.values() if r.ready and r.verb not in _SILENT]

    def handle(self, command: Command) -> None:
        match command:
            case Submit():
                self._submit(command)
            case Deliver():
                for uid, ref in command.items:
                    self._deliver(uid, ref)
            case Discard():
                self._connector.delete(command.keys)
            case Used():
                pass
            case Abort():
                over = [r for uid in command.uids if (r := self._requests.pop(uid, None))]
                for request in over:
                    self._send(Step([], [], request.used), [])
                if all(request.verb != "keep" for request in over):
                    self._send(Aborted(command.uids, command.token), [])
            case Sleep() | Wake():
                self._send(Acknowledged(command.token), [])
            case Inspect():
                self._send(self._inspection(command.token), [])
            case Measure():
                gate = Gate(time.monotonic).statistics()
                self._send(Measured(command.token, 0, gate), [])
            case Stop():
                self.stopped = True
                self._connector.close()
                self._send(Stopped(), [])

    def step(self) -> None:
        now = time.monotonic()
        request = next(r for r in self._running() if r.due <= now)
        match request.verb:
            case "hang":
                threading.Event().wait()
            case "defect":
                raise RuntimeError("nobody is to blame")
            case "garbage":
                self._send({"type": "Nonsense"}, [])
        if request.steps:
            request.steps -= 1
            request.due = now + STEP_S
            if request.verb == "slow":
                self._say(Output(request.submit.uid, [1]))
        else:
            self._finish(request)

    # --- requests -----------------------------------------------------------------------------

    def _submit(self, submit: Submit) -> None:
        script = dict(p.split("=") for p in str(submit.params.get("speaker", "")).split(",") if p)
        request = _Request(submit, script.get(self._spec.name, ""))
        request.steps = STEPS if request.verb in ("slow", "late") else 0
        request.ready = submit.waits_for is None
        self._requests[submit.uid] = request

    def _deliver(self, uid: str, ref: Ref) -> None:
        request = self._requests.get(uid)
        if request is not None and request.verb == "deaf":
            return
        used = {}
        if ref.key is not None:
            self._connector.take(ref.key)
            used = {ref.edge: [ref.key]}
        if request is None:
            self._send(Step([], [], used), [])
            return
        request.ready = ref.end
        if request.verb != "hoard":
            request.used = used

    def _finish(self, request: _Request) -> None:
        uid = request.submit.uid
        del self._requests[uid]
        for edge in request.submit.edges:
            key = f"{uid}/{edge}/0/0"
            self._connector.put(key, [PAYLOAD])
            self._send(Step([], [Ref(uid, edge, 0, True, key, len(PAYLOAD))]), [])
        if self._spec.name == "code2wav":
            tensor = Tensor("float32", (SAMPLES,), 0)
            frames = [memoryview(bytes(4 * SAMPLES))]
            self._send(Step([Output(uid, tensor=tensor)], [], request.used), frames)
            self._say(Output(uid, finish="stop"))
        else:
            self._send(Step([Output(uid, [2], finish="stop")], [], request.used), [])

    def _say(self, output: Output) -> None:
        self._send(Step([output], []), [])

    def _inspection(self, token: int) -> Inspection:
        return Inspection(
            token=token,
            requests=len(self._requests),
            gated=0,
            free_blocks=0,
            total_blocks=1,
            worker_requests=len(self._requests),
            connector_entries=self._connector.statistics().entries,
            steps=0,
        )


if __name__ == "__main__":
    # What the process imports as its host, which would import vLLM, is this.
    host = ModuleType("antiphon.stage.host")
    host.StageHost = StageHost  # type: ignore[attr-defined]
    sys.modules[host.__name__] = host
    from antiphon.stage import process

    process.main()
    sys.stdout.flush()
    os._exit(0)
