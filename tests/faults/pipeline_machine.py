"""Everything that can happen to a pipeline, in whatever order, for hypothesis to find a bad one."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import initialize, precondition, rule
from pipeline_deaths import DyingPipeline

from antiphon.errors import (
    AntiphonError,
    PayloadError,
)
from pipeline_acts import MODALITIES, PATHS
from pipeline_model import Talk
from pipeline_world import Question

KINDS = st.sampled_from(sorted(PATHS))
STOPS = st.sampled_from([(), (), ("one one", "two two", "three three")])
DEADLINES = st.sampled_from([None, None, 0.25, 6.0])
RARELY = st.sampled_from([False, False, False, True])


class PipelineMachine(DyingPipeline):
    """Rules that find nothing to do do nothing."""

    @initialize(
        parts=st.booleans(),
        replicas=st.sampled_from([(1, 2, 1), (2, 1, 1), (2, 2, 2), (1, 1, 2)]),
    )
    def begin(self, parts: bool, replicas: tuple[int, int, int]) -> None:
        self.open(parts, dict(zip(("thinker", "talker", "code2wav"), replicas, strict=True)))

    # --- what callers do ----------------------------------------------------------------------

    @rule(kind=KINDS, deadline_s=DEADLINES, stops=STOPS, twin=RARELY, data=st.data())
    def submit(
        self,
        kind: str,
        deadline_s: float | None,
        stops: tuple[str, ...],
        twin: bool,
        data: st.DataObject,
    ) -> None:
        label = None
        if twin and self.callers:
            label = data.draw(st.sampled_from(self.callers)).label
        self.request(kind, label, deadline_s, stops if kind == "text" else ())

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """The client goes in the middle."""
        request = data.draw(st.sampled_from(self.requests))
        if request.task is not None and not request.task.done():
            request.gone = True
            self.loop.do(request.task.cancel)

    @precondition(lambda self: self.callers)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        caller = data.draw(st.sampled_from(self.callers))
        if caller.alive:
            self.end_early(caller)

    @rule(data=st.data())
    def abort_in_turns(self, data: st.DataObject) -> None:
        """Aborts overlap: each is over when all have acknowledged it, and no sooner."""
        if (first := self.someone_well(data)) is None:
            return
        second = self.request("audio")
        for caller in (first, second):
            if caller.alive:
                self.end_early(caller)
        for process in self.serving(first):
            self.loop.do(process.acknowledge)
        self.check_left()
        third = self.request("text")
        if third.alive:
            self.end_early(third)
        for caller in (second, third):
            self.all_acknowledge(caller)

    @precondition(lambda self: len(self.talks) < 3)
    @rule(kind=st.sampled_from(["text", "both"]))
    def open_session(self, kind: str) -> None:
        number = next(self.numbers)
        session = self.world.omni.session(
            modalities=MODALITIES[kind],
            params={"speaker": number},
            request_id=f"caller {number}",
        )
        talk = Talk(number, PATHS[kind], f"caller {number}", session=session)
        self.enter(talk, self.opened(talk))

    async def opened(self, talk: Talk) -> None:
        assert talk.session is not None
        try:
            await talk.session.__aenter__()
        except AntiphonError as error:
            talk.outcome, talk.ended = error, True

    @precondition(lambda self: self.talks)
    @rule(data=st.data(), keep=st.sampled_from([None, 2]))
    def append(self, data: st.DataObject, keep: int | None) -> None:
        talk = data.draw(st.sampled_from(self.talks))
        self.say(talk, talk.session.append("go on", keep_tokens=keep))

    @precondition(lambda self: self.talks)
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        talk = data.draw(st.sampled_from(self.talks))
        talk.replacing += 1
        self.say(talk, talk.session.replace("anew"), replaces=True)

    @precondition(lambda self: self.talks)
    @rule(data=st.data())
    def interrupt(self, data: st.DataObject) -> None:
        talk = data.draw(st.sampled_from(self.talks))
        talk.fence = max(talk.fence, talk.said)
        self.ask(talk.session.interrupt())

    @precondition(lambda self: self.talks)
    @rule(data=st.data(), really=RARELY)
    def close_session(self, data: st.DataObject, really: bool) -> None:
        talk = data.draw(st.sampled_from(self.talks))
        if really:
            talk.closed = True
            self.ask(talk.session.close())

    # --- what stages do -----------------------------------------------------------------------

    @precondition(lambda self: any(p.running() for p in self.processes))
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """A step of one request."""
        work = [(p, uid) for p in self.processes for uid in p.running()]
        if work:
            process, uid = data.draw(st.sampled_from(work))
            self.loop.do(lambda: self.token(process, uid))

    @precondition(lambda self: any(p.able and p.owed for p in self.processes))
    @rule(data=st.data(), end=st.booleans(), empty=RARELY)
    def payload(self, data: st.DataObject, end: bool, empty: bool) -> None:
        owed = [(p, key) for p in self.processes if p.able for key in sorted(p.owed)]
        if owed:
            process, key = data.draw(st.sampled_from(owed))
            self.pay(process, key, end=end, empty=empty)

    @precondition(lambda self: any(p.running() for p in self.processes))
    @rule(data=st.data(), reason=st.sampled_from(["stop", "length"]))
    def finish(self, data: st.DataObject, reason: str) -> None:
        work = [(p, uid) for p in self.processes for uid in p.running()]
        if work:
            process, uid = data.draw(st.sampled_from(work))
            self.loop.do(lambda: self.end(process, uid, reason))

    @precondition(lambda self: any(p.able and p.live for p in self.processes))
    @rule(data=st.data(), really=RARELY)
    def fail(self, data: st.DataObject, really: bool) -> None:
        units = [(p, uid) for p in self.processes if p.able for uid in sorted(p.live)]
        if units and really:
            process, uid = data.draw(st.sampled_from(units))
            caller = self.owners[uid]
            # An error in a segment that is being interrupted is of no account.
            cut = isinstance(caller, Talk) and (caller.fence or caller.replacing)
            caller.expect(PayloadError, None if cut else self.clock())
            caller.running.discard((process.replica.stage, uid))
            self.loop.do(lambda: process.fail(uid, PayloadError("corrupt")))

    @precondition(lambda self: self.callers)
    @rule(data=st.data(), finish_first=st.booleans())
    def carry_through(self, data: st.DataObject, finish_first: bool) -> None:
        """All that is left of one request happens, as far as its processes can."""
        caller = data.draw(st.sampled_from(self.callers))
        for stage in caller.path:
            if caller.live is not None:
                process = self.world.processes[caller.live.route.replicas[stage]]
                self.carry(process, caller, finish_first)

    @precondition(
        lambda self: any(p.pending_aborts or p.pending_interrupts for p in self.processes)
    )
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        pending = [p for p in self.processes if p.answers]
        pending = [p for p in pending if p.pending_aborts or p.pending_interrupts]
        if pending:
            self.loop.do(data.draw(st.sampled_from(pending)).acknowledge)

    # --- what passes --------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.3, 1.1, 5.0, 25.0]))
    def pass_time(self, seconds: float) -> None:
        self.loop.pass_time(seconds)

    @rule(holding=RARELY)
    def threads(self, holding: bool) -> None:
        """Whether what is done in threads, such as prompts, is done by and by or at once."""
        self.loop.holding = holding
        if not holding:
            self.loop.do(self.loop.work)

    # --- what an operator does ----------------------------------------------------------------

    @precondition(lambda self: not self.slumber_asked)
    @rule(level=st.sampled_from([1, 2]), really=RARELY)
    def sleep(self, level: int, really: bool) -> None:
        if really:
            self.ask(self.world.omni.sleep(level), Question.SLUMBER)

    @rule(tags=st.sampled_from([None, None, ["kv_cache"], ["weights"]]))
    def wake(self, tags: list[str] | None) -> None:
        self.wake_up(tags)

    @precondition(lambda self: any(p.answers and not p.slumber.awake for p in self.processes))
    @rule(data=st.data())
    def fall_asleep(self, data: st.DataObject) -> None:
        tired = [p for p in self.processes if p.answers and not p.slumber.awake]
        if tired:
            self.loop.do(data.draw(st.sampled_from(tired)).fall_asleep)

    @rule(look=st.booleans())
    def inspect(self, look: bool) -> None:
        omni = self.world.omni
        question: Coroutine[Any, Any, object] = omni.inspect() if look else omni.measure()
        self.ask(question)

    @rule(data=st.data(), really=RARELY)
    def drain(self, data: st.DataObject, really: bool) -> None:
        if really:
            replica = self.replica(data)
            self.posts[replica].draining = True
            self.ask(self.world.omni.drain(*replica))

    @rule(data=st.data())
    def rejoin(self, data: st.DataObject) -> None:
        replica = self.replica(data)
        self.posts[replica].draining = False
        self.world.omni.rejoin(*replica)

    @rule(data=st.data(), really=RARELY)
    def restart(self, data: st.DataObject, really: bool) -> None:
        if really:
            replica = self.replica(data)
            self.ask(self.world.omni.restart(*replica), Question.RESTART, replica)

    @rule(really=RARELY, really_so=RARELY)
    def close_pipeline(self, really: bool, really_so: bool) -> None:
        if really and really_so and self.closing is None:
            self.close()

    @rule(really=RARELY, awake=st.booleans())
    def rest(self, really: bool, awake: bool) -> None:
        if really and self.closing is None:
            self.come_to_rest(awake=awake)
