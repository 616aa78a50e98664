"""One request's way through the graph: which stage gets what, and what the caller sees.

Pure: commands leave through a callable, time comes from a callable. A *unit* is one request at one
stage; after a `split` edge a request has one unit per part. Every unit on the path exists before
its input does: consumers are submitted gated, one part ahead of what is known to come. Audio is
handed out in the order of its parts: that of the first unfinished part as it comes, that of later
ones when their turn has come.

A segment of a session is a flow as well. Its unit at the first stage is the session's, which goes
on from segment to segment; the others are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from antiphon.core.continuity import ContinuityMeter
from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import AdapterError, StageError, from_wire
from antiphon.orchestrator.api import (
    AudioChunk,
    OmniEvent,
    OmniRequest,
    Reply,
    Samples,
    StageTiming,
    TextDelta,
    Timings,
)
from antiphon.orchestrator.clients import Frames
from antiphon.orchestrator.uids import part_of, unit_uid
from antiphon.payload.ref import Ref
from antiphon.pipeline.detokenize import Detokenizer
from antiphon.pipeline.topology import Edge, EdgeMode, Stage, Topology
from antiphon.stage.messages import Command, Output, Submit, Update

Send = Callable[[str, Command], None]
SendRef = Callable[[str, str, str, Ref], None]  # (producer, consumer, consuming uid, ref)
_DTYPES = frozenset({"float32", "float16", "int16", "int32", "int64"})


@dataclass(slots=True)
class Unit:
    """One request at one stage; times are clock values in seconds."""

    part: int
    input_s: float
    first_s: float | None = None
    last_s: float | None = None
    tokens: int = 0
    finish: str | None = None
    audio: list[Samples] = field(default_factory=list)  # that is not its turn yet


@dataclass(frozen=True, slots=True)
class Segment:
    """Which part of a session a flow carries. `keep` are the tokens that a window keeps."""

    unit: str  # the session's uid at the first stage
    epoch: int
    update: UpdateKind | None  # None: the session begins with it
    keep: int = 0


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """What does not change while the request runs."""

    uid: str  # what the names of its units begin with
    topology: Topology
    path: tuple[Stage, ...]
    request: OmniRequest
    detokenizer: Detokenizer | None
    segment: Segment | None = None


@dataclass(slots=True)
class Flow:
    """Units by stage and part, and what they have brought. It is submitted when it is made."""

    plan: FlowPlan
    send: Send
    deliver: SendRef
    clock: Callable[[], float]
    started_s: float = field(init=False)
    first_text_s: float | None = None
    first_audio_s: float | None = None
    ended_s: float = 0.0
    text: list[str] = field(default_factory=list)
    units: dict[str, list[Unit]] = field(default_factory=dict)
    open_units: int = 0
    audio: list[Samples] = field(default_factory=list)  # handed out
    audio_part: int = 0  # whose turn it is
    meter: ContinuityMeter = field(default_factory=ContinuityMeter)

    def __post_init__(self) -> None:
        self.started_s = self.clock()

    # --- start --------------------------------------------------------------------------------

    def start(self, prompts: Sequence[Sequence[int]]) -> None:
        """Submit the first stage's parts and everything downstream of them."""
        self.units = {stage.name: [] for stage in self.plan.path}
        first = self.plan.path[0]
        if not prompts:
            raise AdapterError("the entry gave no prompt; raise EmptyInputError when there is none")
        splits = any(edge.split for edge in self._edges_from(first.name))
        if splits and len(prompts) != 1:
            raise AdapterError(
                f"the entry gave {len(prompts)} prompts, but stage '{first.name}' splits its own "
                f"output into parts; give one prompt"
            )
        for prompt in prompts:
            self._submit(first, list(prompt), None)

    def _submit(self, stage: Stage, token_ids: list[int], waits_for: Edge | None) -> None:
        """One more unit of `stage`, and one of each consumer that waits for it."""
        units = self.units[stage.name]
        unit = Unit(len(units), self.clock())
        units.append(unit)
        self.open_units += 1
        self.send(stage.name, self._command(stage, unit.part, token_ids, waits_for))
        for edge in self._edges_from(stage.name):
            self._submit(self.plan.topology.stage(edge.consumer), [], edge)

    def _command(
        self, stage: Stage, part: int, token_ids: list[int], waits_for: Edge | None
    ) -> Submit | Update:
        """What begins a unit: the next segment of a session is an update of its unit."""
        request, segment = self.plan.request, self.plan.segment
        sampling = {**stage.sampling, **request.sampling.get(stage.name, {})}
        enters = waits_for is None
        if enters and segment is not None and segment.update is not None:
            unit, epoch, kind = segment.unit, segment.epoch, segment.update
            return Update(unit, epoch, kind, token_ids, segment.keep, sampling)
        return Submit(
            uid=self._uid(stage.name, part),
            token_ids=token_ids,
            sampling=sampling,
            session=enters and segment is not None,
            epoch=0 if segment is None else segment.epoch,
            edges=tuple(edge.name for edge in self._edges_from(stage.name)),
            waits_for=None if waits_for is None else waits_for.name,
            wait_timeout_s=request.input_wait_timeout_s,
        )

    def _edges_from(self, stage: str) -> list[Edge]:
        on_path = {s.name for s in self.plan.path}
        return [e for e in self.plan.topology.edges_from(stage) if e.consumer in on_path]

    def _uid(self, stage: str, part: int) -> str:
        segment = self.plan.segment
        if segment is not None and stage == self.plan.path[0].name:
            return segment.unit
        return unit_uid(self.plan.uid, part)

    # --- events -------------------------------------------------------------------------------

    def on_ref(self, stage: str, ref: Ref) -> None:
        """A payload of `stage` is stored: pass its ref to the unit that waits for it."""
        edge = next((e for e in self._edges_from(stage) if e.name == ref.edge), None)
        if edge is None:
            raise AdapterError(f"stage '{stage}' sent a payload on edge '{ref.edge}', not its own")
        if not edge.split:
            if edge.mode is EdgeMode.FULL and (ref.seq > 0 or not ref.end):
                raise AdapterError(f"edge '{edge.name}' carries one payload, its adapter made more")
            self._deliver(edge, part_of(ref.uid), ref)
            return
        if ref.seq != len(self.units[edge.consumer]) - 1:
            raise AdapterError(f"part {ref.seq} on edge '{edge.name}' came out of order")
        # To its consumer each part is a whole payload of its own.
        self._deliver(edge, ref.seq, msgspec.structs.replace(ref, seq=0, end=True))
        if not ref.end:
            self._submit(self.plan.topology.stage(edge.consumer), [], edge)

    def _deliver(self, edge: Edge, part: int, ref: Ref) -> None:
        unit = self._unit(edge.consumer, part)
        if ref.seq == 0:
            unit.input_s = self.clock()
        self.deliver(edge.producer, edge.consumer, self._uid(edge.consumer, part), ref)

    def _unit(self, stage: str, part: int) -> Unit:
        units = self.units.get(stage, [])
        if not 0 <= part < len(units):
            raise StageError(f"stage '{stage}' has no part {part} of this request")
        return units[part]

    def on_output(self, stage: str, output: Output, frames: Frames) -> list[OmniEvent]:
        """What a step brought for one unit. Raises the error that ended it, if one did."""
        if output.error is not None:
            raise from_wire(output.error)
        unit = self._unit(stage, part_of(output.uid))
        now = self.clock()
        events: list[OmniEvent] = []
        modality = self.plan.topology.stage(stage).output
        if output.token_ids:
            unit.first_s = now if unit.first_s is None else unit.first_s
            unit.tokens += len(output.token_ids)
            if modality == "text":
                events += self._on_text(output.token_ids, now)
        if output.tensor is not None:
            unit.first_s = now if unit.first_s is None else unit.first_s
            samples = _samples(output, frames)
            unit.tokens += samples.size
            if modality == "audio" and samples.size:
                unit.audio.append(samples)
                events += self._hand_out_audio(stage, now)
        finish = output.segment_finish or output.finish
        if finish is not None and unit.finish is None:
            events += self._on_finish(stage, unit, finish, now)
        return events

    def _on_text(self, token_ids: Sequence[int], now: float) -> list[OmniEvent]:
        if self.plan.detokenizer is None:
            return []
        text = self.plan.detokenizer.feed(token_ids)
        if not text:
            return []
        if self.first_text_s is None:
            self.first_text_s = now
        self.text.append(text)
        return [TextDelta(text)]

    def _on_finish(self, stage: str, unit: Unit, finish: str, now: float) -> list[OmniEvent]:
        if finish not in ("stop", "length"):
            raise StageError(f"stage '{stage}' ended the request with reason '{finish}'")
        unit.finish = finish
        unit.last_s = self.ended_s = now
        self.open_units -= 1
        if self.plan.topology.stage(stage).output != "audio":
            return []
        return self._hand_out_audio(stage, now)

    def _hand_out_audio(self, stage: str, now: float) -> list[OmniEvent]:
        """What may be heard now: the part whose turn it is, and those behind it that follow."""
        events: list[OmniEvent] = []
        rate = self.plan.topology.sample_rate
        parts = self.units[stage]
        while self.audio_part < len(parts):
            unit = parts[self.audio_part]
            if "audio" in self.plan.request.modalities:
                for samples in unit.audio:
                    self.first_audio_s = now if self.first_audio_s is None else self.first_audio_s
                    self.meter.add(now - self.started_s, samples.size / rate)
                    events.append(AudioChunk(samples, rate, self.audio_part))
                self.audio += unit.audio
            unit.audio = []
            if unit.finish is None:
                break
            self.audio_part += 1
        return events

    # --- end ----------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Every unit has finished; none is ever added after that."""
        return self.open_units == 0

    def uids(self) -> dict[str, list[str]]:
        """All units by stage."""
        return {s: [self._uid(s, u.part) for u in units] for s, units in self.units.items()}

    def reply(self, finish_reason: str | None = None) -> Reply:
        """What there is, so far or at last."""
        audio = np.concatenate(self.audio) if self.audio else None
        return Reply(
            text="".join(self.text),
            audio=audio,
            sample_rate=self.plan.topology.sample_rate,
            finish_reason=finish_reason or self._finish_reason(),
            timings=self._timings(0 if audio is None else audio.size),
        )

    def _finish_reason(self) -> str:
        """That of the first stage: what it was asked for is what the caller counts."""
        reasons = [unit.finish for unit in self.units[self.plan.path[0].name]]
        return "length" if "length" in reasons else "stop"

    def _timings(self, num_samples: int) -> Timings:
        def since_start(moment: float | None) -> float | None:
            return None if moment is None else moment - self.started_s

        end = self.ended_s or self.clock()
        return Timings(
            total_s=end - self.started_s,
            ttft_s=since_start(self.first_text_s),
            ttfa_s=since_start(self.first_audio_s),
            audio_s=num_samples / self.plan.topology.sample_rate,
            continuity=self.meter.report() if num_samples else None,
            stages={name: _stage_timing(units) for name, units in self.units.items()},
        )


def _samples(output: Output, frames: Frames) -> Samples:
    tensor = output.tensor
    if tensor is None or tensor.dtype not in _DTYPES:
        raise StageError(f"a stage's output tensor has the unusable dtype {tensor}")
    array = np.frombuffer(frames[tensor.frame], dtype=tensor.dtype)
    return array.reshape(-1).astype(np.float32, copy=False)


def _stage_timing(units: Sequence[Unit]) -> StageTiming:
    ran = [unit for unit in units if unit.first_s is not None]
    return StageTiming(
        queue_s=sum((unit.first_s or 0.0) - unit.input_s for unit in ran),
        run_s=sum((unit.last_s or unit.first_s or 0.0) - (unit.first_s or 0.0) for unit in ran),
        tokens=sum(unit.tokens for unit in ran),
    )
