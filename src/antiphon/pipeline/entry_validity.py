"""Whether the entries of a topology lead where they say; `validity` looks at everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.errors import TopologyError
from antiphon.pipeline.elements import Entry, StageKind
from antiphon.pipeline.suggest import did_you_mean
from antiphon.pipeline.values import is_target

if TYPE_CHECKING:
    from antiphon.pipeline.topology import Topology

INPUTS = ("text", "audio")  # what an entry can take


def check_target(owner: str, role: str, target: str) -> None:
    """Raise TopologyError for what is not in the form of a name of code."""
    if not is_target(target):
        raise TopologyError(
            f"{role} of {owner} is {target!r}; write it as 'package.module:attribute'"
        )


def check_entry(topology: Topology, entry: Entry) -> None:
    """Raise TopologyError for the first mistake of what the entry itself says."""
    if entry.stage not in topology.stage_names:
        raise TopologyError(
            f"entry {entry.name} starts at {entry.stage!r}, which is no stage of pipeline"
            f" {topology.name}{did_you_mean(entry.stage, topology.stage_names)}"
        )
    check_target(f"entry {entry.name}", "adapter", entry.adapter)
    for modality in entry.inputs:
        if modality not in INPUTS:
            raise TopologyError(
                f"entry {entry.name} takes {modality!r}; entries take {' and '.join(INPUTS)}"
                f"{did_you_mean(modality, INPUTS)}"
            )
    _check_ear(topology, entry)
    hearing = entry.start(heard=True)
    if "audio" in entry.inputs and topology.stage(hearing).kind is not StageKind.AR:
        raise TopologyError(
            f"entry {entry.name} takes audio, but starts at {hearing}, a generation stage,"
            " which hears none; let it start at an ar stage"
        )


def _check_ear(topology: Topology, entry: Entry) -> None:
    if entry.ear is None:
        return
    if "audio" not in entry.inputs:
        raise TopologyError(
            f"entry {entry.name} has an ear and takes no audio; add it to inputs, or remove ear"
        )
    if entry.ear.stage not in topology.stage_names:
        raise TopologyError(
            f"the ear of entry {entry.name} is {entry.ear.stage!r}, which is no stage of pipeline"
            f" {topology.name}{did_you_mean(entry.ear.stage, topology.stage_names)}"
        )
    check_target(f"the ear of entry {entry.name}", "adapter", entry.ear.adapter)


def check_way(topology: Topology, entry: Entry) -> None:
    """Raise TopologyError for what does not fit the graph, which has no cycle."""
    if entry.ear is not None:
        behind = [stage.name for stage in topology.downstream(entry.ear.stage)[1:]]
        if entry.stage not in behind:
            raise TopologyError(
                f"the ear of entry {entry.name} is {entry.ear.stage}, from which no edge leads to"
                f" {entry.stage}; add one, or let the entry start at {entry.ear.stage}"
            )
    given = [stage.output for stage in topology.downstream(entry.stage) if stage.output is not None]
    for modality in entry.outputs or ():
        if modality not in given:
            raise TopologyError(
                f"entry {entry.name} is to give {modality!r}, which no stage from {entry.stage} on"
                f" puts out{did_you_mean(modality, given)}"
            )
