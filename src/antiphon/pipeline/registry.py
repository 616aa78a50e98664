"""Pipelines by name: those built in, and those that other packages register.

A package registers `name = "module:TOPOLOGY"` in the entry point group `antiphon.pipelines`.
Loading a pipeline imports its topology module and nothing of its models.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterable

from antiphon.errors import DeploymentError, TopologyError, UnknownPipelineError
from antiphon.pipeline.suggest import did_you_mean
from antiphon.pipeline.topology import Topology

GROUP = "antiphon.pipelines"
BUILT_IN = {
    "codec-lm": "antiphon.models.codec_lm.topology:TOPOLOGY",
    "imagine": "antiphon.models.imagine.topology:TOPOLOGY",
    "qwen2.5-omni": "antiphon.models.qwen2_5_omni.topology:TOPOLOGY",
    "qwen3-omni": "antiphon.models.qwen3_omni.topology:TOPOLOGY",
    "qwen3-tts": "antiphon.models.qwen3_tts.topology:TOPOLOGY",
    "split": "antiphon.models.split.topology:TOPOLOGY",
    "voice": "antiphon.models.voice.topology:TOPOLOGY",
}


def pipeline_targets() -> dict[str, str]:
    """Name → "module:attribute" of every pipeline, sorted by name.

    Raises DeploymentError if two packages register one name for different topologies.
    """
    found = dict(BUILT_IN)
    registered: Iterable[importlib.metadata.EntryPoint]
    registered = importlib.metadata.entry_points(group=GROUP)
    for point in registered:
        if found.setdefault(point.name, point.value) != point.value:
            raise DeploymentError(
                f"pipeline {point.name} is registered twice, as {found[point.name]} and"
                f" {point.value}; uninstall one of the packages"
            )
    return dict(sorted(found.items()))


def load_pipeline(name: str) -> Topology:
    """The topology of a pipeline.

    Raises UnknownPipelineError, and TopologyError if what is registered is not a valid topology.
    """
    targets = BUILT_IN if name in BUILT_IN else pipeline_targets()
    if name not in targets:
        known = ", ".join(targets)
        hint = did_you_mean(name, targets)
        listed = f" (pipelines: {known})" if "did you mean" in hint else ""
        raise UnknownPipelineError(f"no pipeline is called {name!r}{hint}{listed}")
    module_name, _, attribute = targets[name].partition(":")
    try:
        found = vars(importlib.import_module(module_name))[attribute]
    except ImportError as error:
        raise TopologyError(
            f"pipeline {name} cannot be imported from {targets[name]}: {error}"
        ) from error
    except KeyError:
        raise TopologyError(
            f"pipeline {name} is registered as {targets[name]}, but {module_name} has no"
            f" {attribute!r}; correct the entry point"
        ) from None
    if not isinstance(found, Topology):
        raise TopologyError(
            f"pipeline {name} is registered as {targets[name]}, which is a"
            f" {type(found).__name__}; register a Topology"
        )
    return found
