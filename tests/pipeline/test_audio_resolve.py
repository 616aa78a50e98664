"""A stage that an entry brings audio to gets what it needs to hear, if nobody says otherwise."""

from __future__ import annotations

from dataclasses import replace

from antiphon.pipeline.defaults import fill_defaults
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.pipeline.topology import Topology
from antiphon.stage.resolve import HEARING, resolve_stages
from sample_pipeline import CHAT, SAY, TOPOLOGY

HEARS = replace(TOPOLOGY, entries=(replace(CHAT, inputs=("text", "audio")), SAY))


def arguments(topology: Topology, **engine_args: object) -> dict[str, dict[str, object]]:
    stages = {"thinker": StageDeployment(engine_args=engine_args)} if engine_args else {}
    given = fill_defaults(topology, Deployment(pipeline="sample", stages=stages), device="cpu")
    return {
        name: spec.engine_args for name, spec in resolve_stages(topology, given, run="r").items()
    }


def test_the_stage_that_hears_and_no_other() -> None:
    found = arguments(HEARS)
    assert {key: found["thinker"][key] for key in HEARING} == HEARING
    assert found["talker"]["skip_tokenizer_init"] is True
    assert "limit_mm_per_prompt" not in found["talker"]
    assert arguments(TOPOLOGY)["thinker"]["skip_tokenizer_init"] is True


def test_an_operator_may_choose_another_limit() -> None:
    found = arguments(HEARS, limit_mm_per_prompt={"audio": 1})["thinker"]
    assert found["limit_mm_per_prompt"] == {"audio": 1}
    assert found["skip_tokenizer_init"] is False
