"""One request's way through the graph: which stage gets what, and what the caller sees.

Pure: commands leave through a callable, time comes from a callable. A *unit* is one request at one
stage; after a `split` edge a request has one unit per part. Every unit on the path exists before
its input does: consumers are submitted gated, one part ahead of what is known to come. After a
`shared` edge there are as many units as the caller asked for, companions, which are given one
payload; part p of the producer has those from p times that number on. Before a `join` edge the
units are the parts of the call, whose payloads are the chunks of one unit behind it.

A segment of a session is a flow as well. Its unit at the first stage is the session's, which goes
on from segment to segment; the others are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import AdapterError, StageError, from_wire
from antiphon.orchestrator.api import OmniEvent, OmniRequest, Reply, Timings, Usage
from antiphon.orchestrator.clients import Frames
from antiphon.orchestrator.deliveries import Crossing
from antiphon.orchestrator.gathered import Gathered, Unit
from antiphon.orchestrator.media import image_of, samples_of
from antiphon.orchestrator.transcript import Transcript
from antiphon.orchestrator.uids import part_of, unit_uid
from antiphon.payload.ref import Ref
from antiphon.pipeline.detokenize import Detokenizer
from antiphon.pipeline.entry import Prompt
from antiphon.pipeline.topology import Edge, EdgeMode, Stage, Topology, writer
from antiphon.stage.messages import Command, Output, Submit, Update

Send = Callable[[str, Command], None]
# (producer, consumer, consuming uids, ref, what to call when all have used it up)
SendRef = Callable[[str, str, tuple[str, ...], Ref, Callable[[], None]], None]
_NOTHING = Prompt([])  # of a unit that waits for its input


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
    transcript: Transcript | None = None  # of what is heard, if it is wanted


@dataclass(slots=True)
class Flow:
    """Units by stage and part, and what they have brought. It is submitted when it is made."""

    plan: FlowPlan
    send: Send
    deliver: SendRef
    clock: Callable[[], float]
    gathered: Gathered = field(init=False)
    units: dict[str, list[Unit]] = field(default_factory=dict)
    crossings: dict[tuple[str, int], Crossing] = field(default_factory=dict)  # by edge and part
    prompt_tokens: int = 0  # at the first stage
    open_units: int = 0
    ended_s: float = 0.0

    def __post_init__(self) -> None:
        plan = self.plan
        rate, now = plan.topology.sample_rate, self.clock()
        self.gathered = Gathered(plan.request, plan.detokenizer, rate, now, plan.transcript)

    # --- start --------------------------------------------------------------------------------

    def start(self, prompts: Sequence[Sequence[int] | Prompt]) -> None:
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
            given = prompt if isinstance(prompt, Prompt) else Prompt(list(prompt))
            self.prompt_tokens += len(given.token_ids)
            self._submit(first, given, None)

    def _submit(
        self, stage: Stage, prompt: Prompt, waits_for: Edge | None, companion: int = 0
    ) -> None:
        """One more unit of `stage`, and those of each consumer that wait for it."""
        units = self.units[stage.name]
        now = self.clock()
        unit = Unit(len(units), submitted_s=now, input_s=now if waits_for is None else None)
        units.append(unit)
        self.open_units += 1
        self.send(stage.name, self._command(stage, unit.part, prompt, waits_for, companion))
        for edge in self._edges_from(stage.name):
            if edge.join and unit.part > 0:
                continue  # the first part's is everybody's
            for index in range(self._companions(edge)):
                self._submit(self.plan.topology.stage(edge.consumer), _NOTHING, edge, index)

    def _companions(self, edge: Edge) -> int:
        """How many units wait for each payload of this edge."""
        return self.plan.request.n if edge.shared else 1

    def _command(
        self,
        stage: Stage,
        part: int,
        prompt: Prompt,
        waits_for: Edge | None,
        companion: int,
    ) -> Submit | Update:
        """What begins a unit: the next segment of a session is an update of its unit."""
        request, segment = self.plan.request, self.plan.segment
        params = {**request.params, **prompt.params}
        if waits_for is not None and waits_for.shared:
            params["companion"] = companion
        sampling = {**stage.sampling, **request.sampling.get(stage.name, {})}
        enters = waits_for is None
        if enters and segment is not None and segment.update is not None:
            unit, epoch, kind = segment.unit, segment.epoch, segment.update
            return Update(unit, epoch, kind, prompt.token_ids, segment.keep, sampling)
        return Submit(
            uid=self._uid(stage.name, part),
            token_ids=prompt.token_ids,
            audio=prompt.audio,
            sampling=sampling,
            session=enters and segment is not None,
            epoch=0 if segment is None else segment.epoch,
            edges=tuple(edge.name for edge in self._edges_from(stage.name)),
            waits_for=None if waits_for is None else waits_for.name,
            wait_timeout_s=request.input_wait_timeout_s,
            params=params,
        )

    def _edges_from(self, stage: str) -> list[Edge]:
        plan = self.plan
        return [e for e in plan.topology.edges_among(plan.path) if e.producer == stage]

    def _uid(self, stage: str, part: int) -> str:
        segment = self.plan.segment
        if segment is not None and stage == self.plan.path[0].name:
            return segment.unit
        return unit_uid(self.plan.uid, part)

    # --- events -------------------------------------------------------------------------------

    def on_ref(self, stage: str, ref: Ref) -> None:
        """A payload of `stage` is stored: pass its ref to the units that wait for it."""
        edge = next((e for e in self._edges_from(stage) if e.name == ref.edge), None)
        if edge is None:
            raise AdapterError(f"stage '{stage}' sent a payload on edge '{ref.edge}', not its own")
        self._unit(stage, part_of(ref.uid))  # it has to be one of ours
        crossing = self._crossing(edge, ref)
        if not edge.split:
            if edge.mode is EdgeMode.FULL and (ref.seq > 0 or not ref.end):
                raise AdapterError(f"edge '{edge.name}' carries one payload, its adapter made more")
            if edge.join:
                part, parts = part_of(ref.uid), len(self.units[stage])
                ref = msgspec.structs.replace(ref, seq=part, end=part == parts - 1)
                self._deliver(edge, [0], ref, crossing)
                return
            count = self._companions(edge)
            first = part_of(ref.uid) * count
            self._deliver(edge, range(first, first + count), ref, crossing)
            return
        if ref.seq != len(self.units[edge.consumer]) - 1:
            raise AdapterError(f"part {ref.seq} on edge '{edge.name}' came out of order")
        # To its consumer each part is a whole payload of its own.
        self._deliver(edge, [ref.seq], msgspec.structs.replace(ref, seq=0, end=True), crossing)
        if not ref.end:
            self._submit(self.plan.topology.stage(edge.consumer), _NOTHING, edge)

    def _crossing(self, edge: Edge, ref: Ref) -> Crossing:
        now, key = self.clock(), (edge.name, part_of(ref.uid))
        crossing = self.crossings.setdefault(key, Crossing(now))
        crossing.sent(ref, now)
        return crossing

    def _deliver(self, edge: Edge, parts: Sequence[int], ref: Ref, crossing: Crossing) -> None:
        for unit in [self._unit(edge.consumer, part) for part in parts]:
            if ref.seq == 0 or edge.join:
                unit.input_s = self.clock()
                crossing.consumer_parts.append(unit.part)
        uids = tuple(self._uid(edge.consumer, part) for part in parts)
        used = partial(self._used, crossing)
        self.deliver(edge.producer, edge.consumer, uids, ref, used)

    def _used(self, crossing: Crossing) -> None:
        crossing.used(self.clock())

    def _unit(self, stage: str, part: int) -> Unit:
        units = self.units.get(stage, [])
        if not 0 <= part < len(units):
            raise StageError(f"stage '{stage}' has no part {part} of this request")
        return units[part]

    def on_output(self, stage: str, output: Output, frames: Frames) -> list[OmniEvent]:
        """What a step brought for one unit. Raises the error that ended it, if one did."""
        if output.error is not None:
            self.note_error(stage, output)
            raise from_wire(output.error)
        unit = self._unit(stage, part_of(output.uid))
        now = self.clock()
        events: list[OmniEvent] = []
        if output.token_ids or output.tensor is not None:
            unit.first_s = now if unit.first_s is None else unit.first_s
        unit.prompt_tokens += output.prompt_tokens
        unit.cached_tokens += output.cached_tokens
        if output.token_ids:
            unit.tokens += len(output.token_ids)
            modality = self.plan.topology.stage(stage).output
            if modality == "text":
                events += self.gathered.on_tokens(output.token_ids, now)
            elif modality == "transcript":
                events += self.gathered.on_heard(unit, output.token_ids, now)
        if output.tensor is not None:
            events += self._on_tensor(stage, unit, output, frames, now)
        finish = output.segment_finish or output.finish
        if finish is not None and unit.finish is None:
            events += self._on_finish(stage, unit, finish, now)
        elif self.stopped:  # the stage would go on, and is told
            unit.finish, unit.last_s, self.ended_s = "stop", now, now
        return events

    def note_error(self, stage: str, output: Output) -> None:
        """The unit that `output` is of has ended the request."""
        for unit in self.units.get(stage, ()):
            if unit.part == part_of(output.uid):
                unit.finish, unit.last_s = "error", self.clock()

    def _on_tensor(
        self, stage: str, unit: Unit, output: Output, frames: Frames, now: float
    ) -> list[OmniEvent]:
        modality = self.plan.topology.stage(stage).output
        if modality == "image":
            image = image_of(output, frames)
            unit.tokens += image.shape[0] * image.shape[1]
            return self.gathered.on_image(unit, image, now)
        samples = samples_of(output, frames)
        unit.tokens += samples.size
        if modality != "audio" or not samples.size:
            return []
        unit.audio.append(samples)
        return self.gathered.hand_out_audio(self.units[stage], now)

    def _on_finish(self, stage: str, unit: Unit, finish: str, now: float) -> list[OmniEvent]:
        if finish not in ("stop", "length"):
            raise StageError(f"stage '{stage}' ended the request with reason '{finish}'")
        unit.finish = finish
        unit.last_s = self.ended_s = now
        self.open_units -= 1
        match self.plan.topology.stage(stage).output:
            case "audio":
                return self.gathered.hand_out_audio(self.units[stage], now)
            case "transcript":
                return self.gathered.on_heard(unit, (), now, ended=True)
        return []

    # --- end ----------------------------------------------------------------------------------

    def needs(self, stage: str) -> bool:
        """Whether something is still to come from this stage: an output, or a payload."""
        return any(
            unit.finish is None
            or any(not self._crossed(edge, unit) for edge in self._edges_from(stage))
            for unit in self.units.get(stage, ())
        )

    def _crossed(self, edge: Edge, unit: Unit) -> bool:
        """Whether all payloads of a unit have been stored, and their refs sent on."""
        crossing = self.crossings.get((edge.name, unit.part))
        return crossing is not None and crossing.ended

    @property
    def done(self) -> bool:
        """Every unit has finished; none is ever added after that."""
        return self.open_units == 0

    @property
    def stopped(self) -> bool:
        """The text has come to a stop string: nothing that comes now is for the caller."""
        return self.gathered.stops.found

    def uids(self) -> dict[str, list[str]]:
        """All units by stage."""
        return {s: [self._uid(s, u.part) for u in units] for s, units in self.units.items()}

    def rest(self) -> list[OmniEvent]:
        """What was held back of the text; before `reply`, which has it."""
        now = self.clock()
        events = self.gathered.on_text_end(now)
        if events:
            self.ended_s = now
        return events

    def reply(self, finish_reason: str | None = None) -> Reply:
        """What there is, so far or at last."""
        return self.gathered.reply(finish_reason or self._finish_reason(), self.timings, self.usage)

    @property
    def timings(self) -> Timings:
        return self.gathered.timings(self.units, self.ended_s or self.clock())

    @property
    def usage(self) -> Usage:
        counted = self._counted()
        return Usage(
            sum(unit.prompt_tokens for unit in counted) or self.prompt_tokens,
            sum(unit.tokens for unit in counted),
            sum(unit.cached_tokens for unit in counted),
        )

    def _counted(self) -> Sequence[Unit]:
        """The units of the text, which is what the caller counts; without text of the first stage.

        A stage that has handed its cache on has not ended the text.
        """
        return self.units.get(writer(self.plan.path).name, ())

    def _finish_reason(self) -> str:
        if self.stopped:
            return "stop"  # whatever the stage said with the same tokens
        reasons = [unit.finish for unit in self._counted()]
        return "length" if "length" in reasons else "stop"
