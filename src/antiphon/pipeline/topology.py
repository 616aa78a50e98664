"""The topology: a directed graph of stages, declared once by the pipeline's author.

Frozen, and validated at construction. Names in "module:attribute" form are resolved where they are
needed, never here, so that listing pipelines imports no model code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from antiphon.core.options import Preemption
from antiphon.errors import InvalidRequestError, TopologyError
from antiphon.pipeline.elements import Ear, Edge, EdgeMode, Entry, Stage, StageKind
from antiphon.pipeline.suggest import did_you_mean
from antiphon.pipeline.validity import check_topology

__all__ = [
    "Ear",
    "Edge",
    "EdgeMode",
    "Entry",
    "Preemption",
    "Stage",
    "StageKind",
    "Topology",
    "writer",
]

# Of the two usual entries: which the other one is, and what to do where only that one is there.
_INSTEAD = {
    "chat": (
        "speech",
        "speaks texts as they are and answers none; use `antiphon say`, or say in Python",
    ),
    "speech": (
        "chat",
        "answers and does not speak texts as they are; use `antiphon chat`, or chat in Python",
    ),
}


@dataclass(frozen=True, slots=True)
class Topology:
    """A whole pipeline. Construction raises TopologyError if the graph is not valid."""

    name: str
    description: str
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    entries: tuple[Entry, ...]
    sample_rate: int = 24_000  # of the audio output, Hz

    def __post_init__(self) -> None:
        check_topology(self)

    def stage(self, name: str) -> Stage:
        """The stage of this name; TopologyError if there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise TopologyError(
            f"pipeline {self.name} has no stage {name!r}{did_you_mean(name, self.stage_names)}"
        )

    def entry(self, name: str) -> Entry:
        """The entry of this name; InvalidRequestError if there is none, as callers choose it."""
        for entry in self.entries:
            if entry.name == name:
                return entry
        known = [entry.name for entry in self.entries]
        other, instead = _INSTEAD.get(name, (None, ""))
        if other in known:
            raise InvalidRequestError(f"pipeline {self.name} {instead}")
        raise InvalidRequestError(
            f"pipeline {self.name} has no entry {name!r}{did_you_mean(name, known)}"
        )

    def edges_from(self, name: str) -> tuple[Edge, ...]:
        """The edges that leave a stage, in the order of their declaration."""
        return tuple(edge for edge in self.edges if edge.producer == name)

    def edge_into(self, name: str) -> Edge | None:
        """The edge that ends at a stage, or None for one that only entries lead to."""
        return next((edge for edge in self.edges if edge.consumer == name), None)

    def edges_among(self, stages: Iterable[Stage]) -> tuple[Edge, ...]:
        """The edges whose both ends are among these stages, in the order of their declaration."""
        names = {stage.name for stage in stages}
        return tuple(edge for edge in self.edges if {edge.producer, edge.consumer} <= names)

    def hears(self, stage: str) -> bool:
        """Whether an entry brings audio to this stage."""
        return any(e.start(heard=True) == stage and "audio" in e.inputs for e in self.entries)

    @property
    def stage_names(self) -> tuple[str, ...]:
        return tuple(stage.name for stage in self.stages)

    def downstream(self, start: str) -> tuple[Stage, ...]:
        """`start` and everything after it; a producer comes before its consumers."""
        order = [self.stage(start)]
        for stage in order:  # grows while it is walked; in a forest nothing comes twice
            order += [self.stage(edge.consumer) for edge in self.edges_from(stage.name)]
        return tuple(order)

    def outputs_from(self, entry: str, *, heard: bool = False) -> tuple[str, ...]:
        """The modalities that a request through this entry can give, nearest stage first.

        `heard`: one with audio, which can be asked for what its entry's ear gives as well.
        """
        way = self.entry(entry)
        own = way.outputs or self._outputs(way.stage)
        if not heard or way.ear is None:
            return own
        return (*(m for m in self._outputs(way.ear.stage) if m not in own), *own)

    def _outputs(self, start: str) -> tuple[str, ...]:
        order = self.downstream(start)
        return tuple(stage.output for stage in order if stage.output is not None)

    def path_from(
        self, entry: str, modalities: Iterable[str] | None, *, heard: bool = False
    ) -> tuple[Stage, ...]:
        """The stages that a request visits, producers first: no further than its outputs need.

        `heard`: it has audio. None is all that the entry gives, a transcript of its ear not among
        it. Raises InvalidRequestError for an unknown entry, for no modality at all, and for a
        modality that this entry cannot give.
        """
        possible = self.outputs_from(entry, heard=heard)
        wanted = self.outputs_from(entry) if modalities is None else tuple(modalities)
        if not wanted:
            raise InvalidRequestError(
                f"no modality asked for; entry {entry} gives {', '.join(possible)}"
            )
        for modality in wanted:
            if modality not in possible:
                raise self._not_given(entry, modality, possible)
        order = self.downstream(self.entry(entry).start(heard=heard))
        needed: set[str] = set()
        for stage in reversed(order):
            feeds = any(edge.consumer in needed for edge in self.edges_from(stage.name))
            if stage.output in wanted or feeds:
                needed.add(stage.name)
        return tuple(stage for stage in order if stage.name in needed)

    def _not_given(
        self, entry: str, modality: str, possible: tuple[str, ...]
    ) -> InvalidRequestError:
        if modality in self.outputs_from(entry, heard=True):
            return InvalidRequestError(
                f"entry {entry} of pipeline {self.name} gives {modality!r} of a request with audio,"
                " and this one has none; ask for it without, or give audio"
            )
        return InvalidRequestError(
            f"entry {entry} of pipeline {self.name} does not give {modality!r}"
            f"{did_you_mean(modality, possible)}"
        )


def writer(path: Sequence[Stage]) -> Stage:
    """The stage of a request's path that writes the text; the first one where none does."""
    return next((stage for stage in path if stage.output == "text"), path[0])
