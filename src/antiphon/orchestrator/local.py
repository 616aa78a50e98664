"""All stages of a pipeline in the caller's process, stepped by one thread.

For tests, notebooks and debugging: the same hosts and the same loop as in processes of their own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence

from antiphon.errors import AntiphonError, StageDiedError, StageStartError
from antiphon.orchestrator.clients import OnEvent, OnGone, StageClient
from antiphon.stage.messages import Command, Event, Starting, Stop
from antiphon.stage.spec import StageSpec


class LocalStages:
    """The thread that builds and serves the hosts."""

    def __init__(self, specs: Mapping[str, StageSpec], on_event: OnEvent, on_gone: OnGone) -> None:
        self._specs = specs
        self._on_event = on_event
        self._on_gone = on_gone
        self._inbox: queue.SimpleQueue[tuple[str, Command]] = queue.SimpleQueue()
        self._stop_sent = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="antiphon-stages")
        self._thread.start()

    def client(self, stage: str) -> StageClient:
        return _LocalClient(self, stage)

    def send(self, stage: str, command: Command) -> None:
        self._inbox.put((stage, command))

    def stop(self, timeout_s: float) -> None:
        """Stop all hosts: engines of one process are closed together, or not at all."""
        if not self._stop_sent:
            self._stop_sent = True
            for name in self._specs:
                self._inbox.put((name, Stop()))
        self._thread.join(timeout_s)

    def _run(self) -> None:
        hosts = {}
        ready = False
        try:
            import torch

            from antiphon.stage.host import StageHost
            from antiphon.stage.loop import serve

            torch.set_num_threads(max(spec.threads for spec in self._specs.values()))
            for name, spec in self._specs.items():
                if self._stop_sent:
                    return  # closed while it started: the rest need not be built
                self._on_event(name, Starting("building the engine"), ())
                hosts[name] = StageHost(spec, self._sender(name))
            ready = True
            serve(hosts, self._inbox)
        except AntiphonError as error:
            self._report(error)
        except Exception as error:  # noqa: BLE001  thread boundary: the orchestrator gets the reason
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            kind = StageDiedError if ready else StageStartError
            self._report(kind(f"the stages of this process failed: {text}"))
        finally:
            for host in hosts.values():
                host.stop()

    def _sender(self, name: str) -> Callable[[Event, Sequence[memoryview]], None]:
        def send(event: Event, frames: Sequence[memoryview]) -> None:
            self._on_event(name, event, frames)

        return send

    def _report(self, error: AntiphonError) -> None:
        for name in self._specs:
            self._on_gone(name, error)


class _LocalClient(StageClient):
    def __init__(self, stages: LocalStages, name: str) -> None:
        self._stages = stages
        self._name = name

    def send(self, command: Command) -> None:
        self._stages.send(self._name, command)

    def stop(self, timeout_s: float) -> None:
        self._stages.stop(timeout_s)
