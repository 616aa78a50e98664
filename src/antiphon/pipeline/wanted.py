"""Which stages a pipeline needs for what it will be asked. Neither vllm nor torch is imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antiphon.errors import InvalidRequestError
from antiphon.pipeline.elements import Entry, Stage
from antiphon.pipeline.entry_validity import INPUTS
from antiphon.pipeline.suggest import did_you_mean
from antiphon.pipeline.topology import Topology


def stages_wanted(
    topology: Topology,
    entries: Iterable[str] | None = None,
    modalities: Iterable[str] | None = None,
    inputs: Iterable[str] | None = None,
) -> tuple[Stage, ...]:
    """The stages that requests of these entries, modalities and inputs visit, in the topology's
    order.

    None is all of them; where entries are not named, those count that give and take some of it.
    Raises InvalidRequestError for an unknown entry, modality or input, and for an entry that is
    named and cannot do what is named.
    """
    wanted = None if modalities is None else tuple(modalities)
    taken = INPUTS if inputs is None else tuple(inputs)
    if entries is None:
        chosen: Sequence[Entry] = topology.entries
        _check(topology, wanted, taken)
    else:
        chosen = [topology.entry(name) for name in entries]
        _check(topology, None, taken)
        for entry in chosen:
            topology.path_from(entry.name, wanted, heard=True)
            if not set(entry.inputs) & set(taken):
                raise InvalidRequestError(
                    f"entry {entry.name} takes {' and '.join(entry.inputs)}, which inputs leaves"
                    " out; add it, or leave out the entry"
                )
    ways = [
        (entry.name, kind == "audio") for entry in chosen for kind in entry.inputs if kind in taken
    ]
    names: set[str] = set()
    for name, heard in ways:
        given = wanted
        if wanted is not None:
            possible = topology.outputs_from(name, heard=heard)
            given = tuple(modality for modality in wanted if modality in possible)
        if given != ():
            names |= {stage.name for stage in topology.path_from(name, given, heard=heard)}
    return tuple(stage for stage in topology.stages if stage.name in names)


def _check(topology: Topology, wanted: Sequence[str] | None, taken: Sequence[str]) -> None:
    for kind in taken:
        if kind not in INPUTS:
            raise InvalidRequestError(
                f"inputs names {kind!r}; requests bring {' and '.join(INPUTS)}"
                f"{did_you_mean(kind, INPUTS)}"
            )
    possible = {
        modality
        for entry in topology.entries
        for modality in topology.outputs_from(entry.name, heard=True)
    }
    for modality in wanted or ():
        if modality not in possible:
            raise InvalidRequestError(
                f"no entry of pipeline {topology.name} gives {modality!r}"
                f"{did_you_mean(modality, sorted(possible))}"
            )
