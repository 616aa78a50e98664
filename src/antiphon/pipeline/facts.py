"""What only a checkpoint's own files say about a stage, once it is known which checkpoint it is.

A stage whose checkpoint an operator chooses names a function, `Stage.facts`. It is called when the
folders are there, before anything starts. Neither vllm nor torch is imported here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.core.targets import load_target
from antiphon.errors import TopologyError
from antiphon.pipeline.elements import Stage
from antiphon.pipeline.topology import Topology


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """What a checkpoint adds to the topology.

    `sampling` are default SamplingParams, such as the tokens that end a request; they win over
    those of the stage. `sample_rate` is that of the audio which leaves the stage, in Hz; None is
    the topology's word.
    """

    sampling: Mapping[str, object] = field(default_factory=dict)
    sample_rate: int | None = None


def completed(topology: Topology, models: Mapping[str, str]) -> Topology:
    """`topology` with what the checkpoints say; `models` are folders by stage.

    Stages that do not run have none. Raises TopologyError for a function that is not there or
    returns something else; what it raises itself passes through.
    """
    rate, stages = topology.sample_rate, []
    for stage in topology.stages:
        if stage.facts is None or stage.name not in models:
            stages.append(stage)
            continue
        facts = _facts(stage, stage.facts, Path(models[stage.name]))
        stages.append(dataclasses.replace(stage, sampling={**stage.sampling, **facts.sampling}))
        if stage.output == "audio" and facts.sample_rate is not None:
            rate = facts.sample_rate
    return dataclasses.replace(topology, stages=tuple(stages), sample_rate=rate)


def _facts(stage: Stage, target: str, folder: Path) -> CheckpointFacts:
    facts = load_target(target, f"facts of stage {stage.name}")(folder)
    if not isinstance(facts, CheckpointFacts):
        raise TopologyError(
            f"{target} returned a {type(facts).__name__} for stage {stage.name}; it has to return"
            " CheckpointFacts"
        )
    return facts
