"""A pipeline whose stages a test drives by hand: the real `AsyncOmni` and router, no engines."""

from __future__ import annotations

import asyncio

import numpy as np

from antiphon import AsyncOmni
from antiphon.orchestrator.clients import OnEvent, OnGone
from antiphon.stage.messages import Abort, Submit
from antiphon.stage.spec import StageSpec
from antiphon.testing.fake_stage import FakeStage
from fake_server import FAKE, READY
from routing import told

SOUND_BYTES = 1 << 20
SOUND = np.linspace(-0.5, 0.5, SOUND_BYTES // 4, dtype=np.float32)  # what each chunk of sound is


async def settle() -> None:
    """What the stages have said is heard, and its reader has read."""
    for _ in range(4):
        await asyncio.sleep(0)


class HandPipeline:
    """A pipeline and its stages; the talker makes codes of which code2wav makes sound."""

    def __init__(self) -> None:
        self.stages: dict[str, FakeStage] = {}
        self.omni = AsyncOmni(FAKE, make_client=self._client)

    def _client(self, spec: StageSpec, on_event: OnEvent, on_gone: OnGone) -> FakeStage:
        keys = next(iter(self.stages.values())).keys if self.stages else set()
        stage = self.stages[spec.name] = FakeStage(spec.name, on_event, on_gone, keys=keys)
        stage.emit(READY)
        return stage

    async def begun(self, stage: str = "talker") -> str:
        """The uid of the request that a stage is given next; what was sent before is forgotten."""
        await told(self.stages[stage], Submit)
        return self.stages[stage].sent(Submit)[-1].uid

    async def acknowledge(self, *stages: str) -> None:
        """Each of these is told to abort, and says that it has."""
        for name in stages:
            await told(self.stages[name], Abort)
            self.stages[name].acknowledge()

    async def codes(self, uid: str) -> None:
        self.stages["talker"].ref(uid, "codes")
        self.stages["talker"].finish(uid)
        await settle()

    async def sound(self, uid: str, finish: str | None) -> None:
        self.stages["code2wav"].audio(uid, SOUND, finish)
        await settle()

    async def assert_empty(self) -> None:
        """Nothing is left of any request; what the stages were sent is forgotten."""
        for stage in self.stages.values():
            stage.report()
        await settle()
        for stage in self.stages.values():
            assert not stage.live
            assert not stage.store.outstanding
            stage.commands.clear()
            stage.on_command = lambda command: None
        assert not next(iter(self.stages.values())).keys
        assert self.omni.num_running == 0
