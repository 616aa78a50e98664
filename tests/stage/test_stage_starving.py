"""A stage in its own process whose only request waits in mid-decode: it sleeps."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from antiphon.connector.runs import RunLock, new_run_token
from antiphon.connector.shm import ShmConnector
from antiphon.core.options import ConnectorSpec, InEdge
from antiphon.orchestrator.process import ProcessStage
from antiphon.payload import wire
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload, per_token
from antiphon.stage.messages import Deliver, Event, Ready, Step, Submit
from tiny import HIDDEN, tiny_spec

SUPPORT = Path(__file__).parents[1] / "support"
WATCHED_S = 5.0
LIMIT = 0.01  # of a core


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Processor time of a process so far: of its threads but gloo's, and of those.

    torch.distributed keeps a thread for each of upstream's process groups, which looks a hundred
    times a second whether there is something to do, in every vLLM process.
    """
    own = gloo = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        fields = rest.split()
        spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        if name.startswith("gloo_"):
            gloo += spent
        else:
            own += spent
    return own, gloo


@pytest.mark.slow
def test_a_starving_stage_uses_no_processor(model_b: str) -> None:
    """At most 1 % of a core while everything waits; a chunk wakes it."""
    run = new_run_token()
    edge = InEdge("rows", "tiny_streams:RowStreamIn", stream=True)
    spec = tiny_spec("sleeper", model_b, run, inputs=(edge,), enable_prompt_embeds=True)
    spec = msgspec.structs.replace(
        spec,
        connector=ConnectorSpec("shm", run),
        check_every_step=False,
        environment={
            "PYTHONPATH": str(SUPPORT),
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_USE_V2_MODEL_RUNNER": "0",
        },
    )
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    gone: list[Exception] = []
    lock = RunLock(run)
    connector = ShmConnector(run, 1 << 20)
    stage = ProcessStage(
        spec,
        lambda _name, event, _frames: events.put(event),
        lambda _name, why: gone.append(why),
    )

    def until(kind: type[Any], tokens: int = 0) -> None:
        seen = 0
        while True:
            event = events.get(timeout=120)
            if isinstance(event, Step):
                seen += sum(len(out.token_ids) for out in event.outputs)
            if isinstance(event, kind) and seen >= tokens:
                return

    def chunk(seq: int, count: int) -> None:
        rows = torch.ones(count, HIDDEN)
        payload = Payload({"rows": per_token(rows)})
        key = f"p/rows/0/{seq}"
        size = connector.put(key, wire.encode(payload))
        ref = Ref("p", "rows", seq, False, key, size, payload.specs())
        stage.send(Deliver([("c", ref)]))

    try:
        until(Ready)
        sampling = {"temperature": 0.0, "max_tokens": 50, "ignore_eos": True}
        stage.send(Submit("c", [], sampling, waits_for="rows", params={"prompt": 4}))
        chunk(0, 6)  # the prompt, and two of the rows that its tokens need
        until(Step, tokens=3)
        threading.Event().wait(1.0)  # its last step is still being reported
        before = cpu_seconds(stage.pid)
        threading.Event().wait(WATCHED_S)
        after = cpu_seconds(stage.pid)
        used, gloo = ((b - a) / WATCHED_S for a, b in zip(before, after, strict=True))
        print(f"a starving stage uses {used:.2%} of a core, torch's own threads {gloo:.2%}")
        assert used <= LIMIT
        chunk(1, 1)
        until(Step, tokens=1)
        assert not gone
    finally:
        stage.stop(10)
        connector.close()
        lock.close()
