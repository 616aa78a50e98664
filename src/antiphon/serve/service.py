"""The one pipeline that a server has, and whether it serves."""

from __future__ import annotations

import asyncio
import enum
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.observe.metrics import Metrics
from antiphon.observe.timelines import Timelines
from antiphon.orchestrator.omni import AsyncOmni
from antiphon.orchestrator.replica import ReplicaState
from antiphon.serve.bodies import BodyBudget
from antiphon.serve.errors import RETRY_AFTER_S, ApiError
from antiphon.serve.settings import ServeSettings


class ServerPhase(enum.StrEnum):
    """It only ever goes on to a later one."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


class Service:
    """What handlers need. Belongs to the event loop that the server runs on."""

    def __init__(self, omni: AsyncOmni, settings: ServeSettings) -> None:
        self.omni = omni
        self.settings = settings
        self.phase = ServerPhase.STARTING
        self.started_unix_s = int(time.time())
        self.bodies = BodyBudget(settings)
        self.timelines = Timelines()
        self.draining = asyncio.Event()  # for calls that would never end by themselves
        self._open = 0  # calls that are being answered
        self._idle = asyncio.Event()
        self._idle.set()
        self.metrics = Metrics(self.model)
        omni.observe(self.timelines)
        omni.observe(self.metrics)

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the pipeline. Raises what keeps it from starting."""
        await self.omni.start()
        if self.phase is ServerPhase.STARTING:
            self.phase = ServerPhase.SERVING

    async def drain(self, timeout_s: float) -> bool:
        """Take no new calls and wait for those that are open; whether all have ended."""
        self.phase = ServerPhase.DRAINING
        self.draining.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Fail what is left, stop every stage."""
        self.phase = ServerPhase.STOPPED
        self.draining.set()
        await self.omni.close()

    # --- calls --------------------------------------------------------------------------------

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Around the answering of one call, so that draining waits for its end.

        Raises ApiError if there are as many as may be.
        """
        if self._open >= self.settings.max_connections:
            self.metrics.refused("too_many_connections")
            raise ApiError(
                503,
                f"{self._open} calls are open, which is as many as may be; try again later",
                code="too_many_connections",
                retry_after_s=1,
            )
        self._open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    @property
    def open_calls(self) -> int:
        return self._open

    def require_serving(self) -> None:
        """Raise ApiError 503 unless requests are taken."""
        if self.phase is not ServerPhase.SERVING:
            self.metrics.refused(f"server_{self.phase}")
            raise ApiError(
                503,
                f"the server is {self.phase}; try again later",
                code=f"server_{self.phase}",
                retry_after_s=RETRY_AFTER_S,
            )

    # --- the model ----------------------------------------------------------------------------

    @property
    def model(self) -> str:
        """What callers call the pipeline."""
        return self.settings.served_model_name or self.omni.topology.name

    def check_model(self, name: str) -> None:
        """Raise ApiError 404 for a model that is not served."""
        if name != self.model:
            raise ApiError(
                404,
                f"the model {name!r} is not served here; this server has {self.model!r}",
                code="model_not_found",
                param="model",
            )

    def health(self) -> tuple[bool, dict[str, object]]:
        """Whether all kinds of calls can be answered, and the state of each stage and replica.

        Degraded is one of which not all serves; it may answer all calls, or those that do not need
        what is missing. One that sleeps is well: calls wait until it is woken.
        """
        stages = self.omni.stage_states
        words = {replica.state for stage in stages.values() for replica in stage.replicas}
        serves = self.phase is ServerPhase.SERVING and all(s.serves for s in stages.values())
        status = "ok"
        if self.phase is not ServerPhase.SERVING:
            status = str(self.phase)
        elif not any(stage.serves for stage in stages.values()):
            status = "unavailable"
        elif not words <= {"ready", "asleep"}:
            status = "degraded"
        elif "asleep" in words:
            status = "sleeping"
        found = {
            name: {"state": stage.state, "replicas": [_described(r) for r in stage.replicas]}
            for name, stage in stages.items()
        }
        return serves, {"status": status, "model": self.model, "stages": found}


def _described(replica: ReplicaState) -> dict[str, object]:
    body: dict[str, object] = {
        "id": replica.id,
        "state": replica.state,
        "restarts": replica.restarts,
    }
    if replica.why is not None:
        body["reason"] = replica.why
    if replica.restart_in_s is not None:
        body["restart_in_s"] = round(replica.restart_in_s, 3)
    return body


def new_id(prefix: str) -> str:
    """An id for an answer; nothing of the caller's is in it."""
    return f"{prefix}-{secrets.token_hex(12)}"
