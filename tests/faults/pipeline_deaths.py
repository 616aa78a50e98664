"""Ends of processes in the moments that matter: rules that bring such a moment about by themselves.

Each says what has to follow; that all else goes on is what the checks after each step say.
"""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from antiphon.orchestrator.api import Finished
from antiphon.orchestrator.live import PATIENCE_S
from pipeline_acts import ActingPipeline, Owed
from pipeline_model import Caller, Request
from pipeline_world import Question
from supervised import EDGES, SUPERVISION, TICK_S, Process

RARELY = st.sampled_from([False, False, False, True])
VERY_RARELY = st.sampled_from([*[False] * 9, True])
IN_TIME_S = 5.0  # of silence: less than is allowed, and more than half of it


class DyingPipeline(ActingPipeline):
    """Rules that find nothing to do do nothing."""

    # --- at any moment ------------------------------------------------------------------------

    @rule(data=st.data(), really=st.booleans(), busy=st.booleans())
    def kill(self, data: st.DataObject, really: bool, busy: bool) -> None:
        """While it starts, computes, sleeps, hangs, or is asked something."""
        alive = [p for p in self.processes if not p.gone and (p.live or not busy)]
        if alive and really:
            self.end_process(data.draw(st.sampled_from(alive)))

    @precondition(lambda self: any(not p.gone and not p.serves for p in self.processes))
    @rule(data=st.data())
    def come_up(self, data: st.DataObject) -> None:
        starting = [p for p in self.processes if not p.gone and not p.serves]
        if starting:
            self.loop.do(data.draw(st.sampled_from(starting)).come_up)

    @rule(data=st.data(), really=RARELY)
    def freeze(self, data: st.DataObject, really: bool) -> None:
        alive = [p for p in self.processes if p.answers]
        if alive and really:
            data.draw(st.sampled_from(alive)).freeze()

    @precondition(lambda self: any(p.frozen and not p.gone for p in self.processes))
    @rule(data=st.data())
    def thaw(self, data: st.DataObject) -> None:
        frozen = [p for p in self.processes if p.frozen and not p.gone]
        if frozen:
            self.loop.do(data.draw(st.sampled_from(frozen)).thaw)

    # --- with payloads under way --------------------------------------------------------------

    @rule(data=st.data(), end=st.booleans())
    def deliver_and_kill(self, data: st.DataObject, end: bool) -> None:
        """A consumer has been given a payload and has not taken it."""
        if found := self.deliverable():
            producer, consumer, key = data.draw(st.sampled_from(found))
            self.pay(producer, key, end=end)
            if not consumer.gone:
                self.end_process(consumer)

    @rule(data=st.data())
    def store_and_kill(self, data: st.DataObject) -> None:
        """A producer has stored a payload and told nobody of it."""
        if found := [(p, key) for p, _, key in self.deliverable() if key[0] in p.live]:
            process, (uid, edge, epoch) = data.draw(st.sampled_from(found))
            process.store.put(uid, edge, epoch, None, end=False, empty=False)
            self.end_process(process)

    def deliverable(self) -> list[tuple[Process, Process, Owed]]:
        """Payloads that may come, with who stores them and who waits for them.

        Of a new request if there is no other.
        """
        if not (found := self.payloads_due()):
            self.recover()
            self.request("audio")
            found = self.payloads_due()
        return found

    def payloads_due(self) -> list[tuple[Process, Process, Owed]]:
        found = []
        for process in self.processes:
            process.note_owed()
            for key in sorted(process.owed) if process.able else ():
                caller = self.owners[key[0]]
                if self.process_of(caller, process.replica.stage) is process:
                    behind = caller.path[caller.path.index(process.replica.stage) + 1]
                    if (consumer := self.process_of(caller, behind)) is not None:
                        found.append((process, consumer, key))
        return found

    # --- when nothing, or only a payload, is to come any more ---------------------------------

    @rule(
        data=st.data(),
        index=st.sampled_from([0, 1]),
        comes_back=st.booleans(),
        then=st.sampled_from(["goes on", "goes on", "is aborted", "is owed"]),
    )
    def finish_and_kill(self, data: st.DataObject, index: int, comes_back: bool, then: str) -> None:
        """A request that has all of a stage goes on; one that is owed a payload fails."""
        if (caller := self.someone_well(data)) is None:
            return
        index = min(index, len(caller.path) - 2)
        *before, last = self.serving(caller)[: index + 1]
        for process in before:
            self.carry(process, caller, True)
        self.finish_units(last, caller)
        if then == "is owed" and caller.needs(last):  # its payload may have come before
            self.end_process(last)
            self.loop.pass_time(PATIENCE_S + TICK_S)
            assert caller.outcome is not None or caller.gone, f"{caller} waits for what was lost"
            return
        self.pay_all(last, caller)
        self.end_process(last)
        if comes_back:
            self.loop.pass_time(SUPERVISION.max_backoff_s)
            self.all_come_up()
        if then == "is aborted" and caller.alive:
            self.end_early(caller)
            self.all_acknowledge(caller)
        else:
            self.go_on(caller, caller.path[index + 1 :])

    @precondition(lambda self: self.may_go_on(EDGES["talker"]))
    @rule(data=st.data(), empty=st.booleans())
    def finish_early_and_kill(self, data: st.DataObject, empty: bool) -> None:
        """What still comes for a consumer that has all it wants, and has ended, is of no use."""
        if (caller := self.someone_well(data)) is None:
            return
        *before, producer, consumer = self.serving(caller)
        for process in before:
            self.carry(process, caller, True)
        producer.note_owed()
        owed = [key for key in sorted(producer.owed) if self.owners[key[0]] is caller]
        for key in owed:
            self.pay(producer, key, end=False)
        self.finish_units(consumer, caller)
        self.end_process(consumer)
        for key in owed:
            self.pay(producer, key, end=True, empty=empty)
        self.go_on(caller, [producer.replica.stage])

    def go_on(self, caller: Request, stages: Sequence[str]) -> None:
        """The rest of a request happens, unless there is something else that has ended it."""
        for stage in stages:
            if (process := self.process_of(caller, stage)) is not None:
                self.carry(process, caller, True)
        ended = caller.gone or caller.reasons
        assert ended or isinstance(caller.outcome, Finished), f"{caller} does not go on"

    def someone_well(self, data: st.DataObject) -> Request | None:
        """One of `well`, for which everything is put right and another one made if need be."""
        if not self.well():
            self.recover()
            self.request("audio")
        requests = self.well()
        return data.draw(st.sampled_from(requests)) if requests else None

    def well(self) -> list[Request]:
        """Requests whose path has an edge, and all of whose processes compute."""
        return [
            request
            for request in self.requests
            if len(request.path) > 1
            and all(
                (process := self.process_of(request, stage)) is not None
                and process.able
                and process.slumber.awake
                for stage in request.path
            )
        ]

    # --- while somebody waits for an answer ---------------------------------------------------

    @precondition(lambda self: any(caller.alive for caller in self.callers))
    @rule(data=st.data(), everybody=RARELY, answers=st.sampled_from([0, 1, 9]))
    def abort_and_kill(self, data: st.DataObject, everybody: bool, answers: int) -> None:
        """One that has to acknowledge an abort ends instead; the others answer so many times."""
        callers = [caller for caller in self.callers if caller.alive]
        if not callers:
            return
        caller = data.draw(st.sampled_from(callers))
        for aborted in callers if everybody else [caller]:
            self.end_early(aborted)
        asked = [p for p in self.serving(caller) if p.pending_aborts]
        if asked:
            self.end_process(data.draw(st.sampled_from(asked)))
        for process in self.serving(caller) if answers == 1 else ():
            if process.answers:
                self.loop.do(process.acknowledge)
        if answers > 1:
            self.all_acknowledge(caller)

    def all_acknowledge(self, caller: Caller) -> None:
        """All that still serve an aborted request let go of it: it is over, if they can."""
        processes = self.serving(caller)
        able = all(process.able and process.slumber.awake for process in processes)
        for process in processes:
            while process.answers and process.pending_aborts:
                self.loop.do(process.acknowledge)
        assert not (able and caller.alive), f"{caller} waits for an answer that nobody owes"

    @rule(data=st.data(), really=RARELY)
    def restart_and_kill(self, data: st.DataObject, really: bool) -> None:
        """A process that is being ended on purpose ends by itself just then."""
        replica = self.replica(data)
        process = self.world.processes[replica]
        if really and not process.gone:
            self.loop.holding = True
            self.ask(self.world.omni.restart(*replica), Question.RESTART, replica)
            if not process.gone:
                self.end_process(process)
            self.loop.holding = False
            self.loop.do(self.loop.work)

    @rule(data=st.data(), really=RARELY, level=st.sampled_from([1, 2]))
    def sleep_and_kill(self, data: st.DataObject, really: bool, level: int) -> None:
        """One that is to sleep ends; what comes in its place sleeps as well."""
        alive = [p for p in self.processes if p.answers]
        if alive and really and not self.slumber_asked:
            process = data.draw(st.sampled_from(alive))
            self.ask(self.world.omni.sleep(level), Question.SLUMBER)
            self.end_process(process)
            self.loop.pass_time(SUPERVISION.max_backoff_s)
            self.all_come_up()

    # --- again and again ----------------------------------------------------------------------

    @rule(data=st.data(), really=RARELY, times=st.sampled_from([2, 3]))
    def stall(self, data: st.DataObject, really: bool, times: int) -> None:
        """It is silent for a while, several times, and each time it goes on soon enough."""
        alive = [p for p in self.processes if p.answers]
        if not (alive and really):
            return
        process = data.draw(st.sampled_from(alive))
        for _ in range(times):
            process.freeze()
            self.loop.pass_time(IN_TIME_S)
            self.loop.do(process.thaw)
            self.loop.pass_time(2 * TICK_S)

    @rule(data=st.data(), really=VERY_RARELY, comes_up=st.booleans())
    def wear_out(self, data: st.DataObject, really: bool, comes_up: bool) -> None:
        """A replica ends until it may not be started again, and is not."""
        replica = self.replica(data)
        post = self.posts[replica]
        if not really or post.restarts:
            return
        for _ in range(SUPERVISION.restarts + 1):
            if self.world.processes[replica].gone:
                if post.down:
                    break
                self.loop.pass_time(SUPERVISION.max_backoff_s)
            process = self.world.processes[replica]
            assert not process.gone, f"{replica} was not started again"
            if comes_up and not process.serves:
                self.loop.do(process.come_up)
            self.end_process(process)
        assert post.down
        last = self.world.processes[replica]
        self.loop.pass_time(2 * SUPERVISION.max_backoff_s)
        assert self.world.processes[replica] is last, f"{replica} was started too often"
        states = self.world.omni.stage_states[replica.stage].replicas
        assert states[replica.number].state == "gone"
        self.ask(self.world.omni.restart(*replica), Question.RESTART, replica)

    @rule()
    def put_right(self) -> None:
        self.recover()

    def recover(self) -> None:
        """Whatever hangs, sleeps, drains or is being started serves again, and answers."""
        for replica in self.world.replicas:
            self.posts[replica].draining = False
            self.world.omni.rejoin(*replica)
        for process in self.processes:
            self.loop.do(process.thaw)
        self.wake_up(None)
        self.loop.pass_time(SUPERVISION.max_backoff_s)
        self.all_come_up()
        for process in self.processes:
            while process.answers and (process.pending_aborts or process.pending_interrupts):
                self.loop.do(process.acknowledge)

    def all_come_up(self) -> None:
        for process in self.processes:
            if not process.gone and not process.serves:
                self.loop.do(process.come_up)
