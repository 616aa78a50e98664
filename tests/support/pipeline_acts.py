"""What a supervised pipeline's requests and processes can be had to do."""

from __future__ import annotations

import hypothesis.strategies as st

from antiphon.errors import AntiphonError, DeadlineExceededError, StageStartError
from antiphon.orchestrator.api import Finished, OmniRequest
from antiphon.orchestrator.replica import Replica
from pipeline_checks import CheckedPipeline
from pipeline_model import Caller, Request, Talk, sample, word
from supervised import EDGES, Process

PATHS = {
    "text": ("thinker",),
    "audio": ("thinker", "talker", "code2wav"),
    "both": ("thinker", "talker", "code2wav"),
    "speech": ("talker", "code2wav"),
}
MODALITIES = {"text": ("text",), "both": ("text", "audio"), "audio": ("audio",), "speech": None}
Owed = tuple[str, str, int]  # a payload's unit, edge and epoch


class ActingPipeline(CheckedPipeline):
    """Acts that rules are made of."""

    def request(
        self,
        kind: str,
        label: str | None = None,
        deadline_s: float | None = None,
        stops: tuple[str, ...] = (),
    ) -> Request:
        """Somebody makes one, and reads it to its end."""
        number = next(self.numbers)
        caller = Request(number, PATHS[kind], label or f"caller {number}", stops=stops)
        if deadline_s is not None:
            caller.expect(DeadlineExceededError, self.clock() + deadline_s)
        request = OmniRequest(
            entry="speech" if kind == "speech" else "chat",
            text="say it",
            modalities=MODALITIES[kind],
            deadline_s=deadline_s,
            stop=stops,
            request_id=caller.label,
            params={"speaker": number},
        )
        self.enter(caller, self.read(caller, request))
        return caller

    async def read(self, caller: Request, request: OmniRequest) -> None:
        try:
            async for event in self.world.omni.stream(request):
                caller.take(event)
        except AntiphonError as error:
            assert caller.outcome is None, "a second outcome"
            caller.outcome = error

    def replica(self, data: st.DataObject) -> Replica:
        return data.draw(st.sampled_from(self.world.replicas))

    def process_of(self, caller: Caller, stage: str) -> Process | None:
        """The process that serves a request at a stage; None if it serves it no more."""
        if caller.live is None or not caller.alive or stage not in caller.path:
            return None
        process = self.world.processes[caller.live.route.replicas[stage]]
        return process if process.serves and not process.gone else None

    def serving(self, caller: Caller) -> list[Process]:
        """In the path's order."""
        found = [self.process_of(caller, stage) for stage in caller.path]
        return [process for process in found if process is not None]

    def token(self, process: Process, uid: str) -> None:
        if process.replica.stage == "code2wav":
            process.audio(uid, [sample(self.owners[uid].number)], finish=None)
        else:
            process.tokens(uid, word(self.owners[uid].number))

    def end(self, process: Process, uid: str, reason: str) -> None:
        process.note_owed()
        if uid in process.sessions:
            process.end_segment(uid, reason)
            return
        self.owners[uid].running.discard((process.replica.stage, uid))
        process.finish(uid, reason)

    def pay(self, process: Process, key: Owed, *, end: bool, empty: bool = False) -> None:
        last = end or not self.may_go_on(key[1])
        self.loop.do(lambda: process.pay(key, end=last, empty=empty))

    def may_go_on(self, edge: str) -> bool:
        return not self.parts or edge == EDGES["thinker"]

    def finish_units(self, process: Process, caller: Caller) -> None:
        """All that a request has there and that runs ends."""

        def finish() -> None:
            for uid in process.running():
                if self.owners[uid] is caller:
                    self.token(process, uid)
                    self.end(process, uid, "stop")

        self.loop.do(finish)

    def pay_all(self, process: Process, caller: Caller) -> None:
        """All payloads that a request is owed there are stored."""

        def pay() -> None:
            owed = [key for key in sorted(process.owed) if self.owners[key[0]] is caller]
            for key in owed if process.able else ():
                process.pay(key, end=True)

        self.loop.do(pay)

    def carry(self, process: Process, caller: Caller, finish_first: bool) -> None:
        acts = (self.finish_units, self.pay_all)
        for act in acts if finish_first else reversed(acts):
            act(process, caller)

    def end_early(self, caller: Caller) -> None:
        """Somebody aborts it."""
        caller.expect(Finished, None if isinstance(caller, Talk) else self.clock())
        if isinstance(caller, Talk):
            caller.closed = True
        self.ask(self.world.omni.abort(caller.label))

    def end_process(self, process: Process) -> None:
        why = None
        if not process.serves:
            why = StageStartError(f"stage '{process.name}' has no weights")
        self.blamed = process
        self.loop.do(lambda: process.die(why))
        self.world.settle()
