"""Waking a pipeline of which a stage is being started again."""

from __future__ import annotations

from antiphon import AsyncOmni, OmniRequest
from antiphon.orchestrator.clients import OnEvent, OnGone
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.supervision import Supervision
from antiphon.stage.messages import Ready, Wake
from antiphon.stage.spec import StageSpec
from antiphon.testing.fake_stage import FakeStage
from fake_server import ANSWERS, FAKE
from routing import settle

READY = Ready(max_model_len=8, num_blocks=1, block_size=8, vllm_version="")


async def test_what_runs_wakes_though_another_stage_is_away() -> None:
    """The thinker's callers do not wait for a talker that they do not need."""
    stages: dict[str, FakeStage] = {}

    def make(spec: StageSpec, on_event: OnEvent, on_gone: OnGone) -> FakeStage:
        stage = FakeStage(spec.name, on_event, on_gone, answer=ANSWERS[spec.name])
        stages[spec.name] = stage
        stage.emit(READY)
        return stage

    late = Deployment(supervision=Supervision(backoff_s=600, max_backoff_s=600))
    async with AsyncOmni(FAKE, deployment=late, make_client=make) as omni:
        await omni.sleep()
        stages["talker"].die()
        await settle()
        assert omni.stage_states["talker"].state == "restarting"
        await omni.wake()
        assert stages["thinker"].sent(Wake)
        assert omni.stage_states["thinker"].state == "ready"
        reply = await omni.generate(OmniRequest(text="one", modalities=("text",)))
        assert reply.text == "one two three"
