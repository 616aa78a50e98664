"""What holds of a supervised pipeline after each step, and when it rests (I1 to I4)."""

from __future__ import annotations

import asyncio

from hypothesis.stateful import invariant

from antiphon.connector.runs import shm_directory
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    ShutdownError,
    StageDiedError,
)
from antiphon.orchestrator.api import Finished
from antiphon.orchestrator.live import PATIENCE_S
from antiphon.orchestrator.replica import ReplicaState
from antiphon.orchestrator.segments import MAX_SEGMENTS
from pipeline_model import Post, Request, Talk
from pipeline_world import PipelineWorld, Question
from supervised import (
    SUPERVISION,
    TICK_S,
    Process,
)


class CheckedPipeline(PipelineWorld):
    """The checks."""

    # --- after each step ----------------------------------------------------------------------

    @invariant()
    def always(self) -> None:
        self.world.settle()
        if self.loop.faults:
            fault = self.loop.faults[0]
            raise fault if isinstance(fault, BaseException) else AssertionError(fault)
        for process in self.processes:
            process.note_owed()
            process.check_integrity()
        self.check_answers()
        self.check_callers()
        self.check_left()
        self.world.router.check_integrity()
        self.world.router.admission.check_integrity()
        if self.closing is None:
            for stage in self.counts:
                assert self.world.omni.admission.live(stage) == self.load(stage), "miscounted"
            self.check_processes()
            self.check_states()
            self.check_timers()
        elif self.closing.done():
            self.check_closed()
            self.open(self.parts, self.counts)

    def check_answers(self) -> None:
        open_questions = []
        for kind, task, replica in self.questions:
            if not task.done():
                open_questions.append((kind, task, replica))
                continue
            if replica is not None and replica in self.posts:
                self.posts[replica].restarts -= 1
                # What was draining before stays so, unless it was told otherwise meanwhile.
                self.posts[replica].draining = replica in self.world.router.draining
            assert not task.cancelled(), f"{kind}: whoever asked was cancelled"
            error = task.exception()
            assert error is None or isinstance(error, AntiphonError), f"{kind}: {error!r}"
        self.questions = open_questions
        self.sayings = [saying for saying in self.sayings if not self.has_said(*saying)]

    def has_said(self, talk: Talk, saying: asyncio.Task[int], replaces: bool) -> bool:
        """Whether an append or a replacement has come to its end, which is as it has to be."""
        if not saying.done():
            return False
        error = saying.exception()
        if error is None:
            talk.said += 1
        elif isinstance(error, InvalidRequestError):
            assert talk.closed or talk.said - len(talk.ends) >= MAX_SEGMENTS
        else:
            assert type(error) in talk.reasons, f"{error!r} of what was said"
        if replaces and error is None:  # one that failed may have interrupted nevertheless
            talk.replacing -= 1
            talk.fence = max(talk.fence, saying.result())
        return True

    def check_callers(self) -> None:
        restarted = {replica for replica, post in self.posts.items() if post.restarts}
        for caller in self.callers:
            self.find(caller)
            if any(caller.bound(replica) for replica in restarted):
                caller.reasons.add(StageDiedError)  # the replica has been given requests again
            if isinstance(caller, Talk) and caller.live is not None:
                self.hear(caller)
            elif isinstance(caller, Request) and caller.task is not None and caller.task.done():
                if not caller.task.cancelled():
                    caller.task.result()
                assert caller.gone or caller.outcome is not None
            caller.check(self.clock())

    def hear(self, talk: Talk) -> None:
        """Read all that there is of a session."""
        while not talk.ended:
            assert talk.session is not None
            reading = self.loop.create_task(anext(talk.session))  # type: ignore[arg-type]
            self.loop.settle()
            if not reading.done():
                reading.cancel()
                self.loop.settle()
                return
            try:
                talk.take(reading.result())
            except StopAsyncIteration:
                talk.ended = True
                assert talk.outcome is not None or talk.closed or self.closing is not None
            except AntiphonError as error:
                assert talk.outcome is None, "a second error"
                talk.outcome = error

    def check_left(self) -> None:
        """Of a request that has ended nothing is left: no unit, and no payload that nobody has."""
        stored: set[str] = set()
        for process in self.processes:
            if not process.gone:
                stored |= process.store.outstanding
                for uid in process.live:
                    assert not self.over(uid), f"{process} holds a unit of what has ended"
        for key in self.world.payloads:
            uid = key.split("/")[1]
            assert key in stored or not self.over(uid), f"payload {key} is left"

    def over(self, uid: str) -> bool:
        live = self.owners[uid].live
        return live is not None and live.ended.is_set()

    def check_processes(self) -> None:
        """Each is ended and started when it has to be; none is left over."""
        now = self.clock()
        for replica, post in self.posts.items():
            process = self.world.processes[replica]
            if post.due_s is not None and not process.gone:
                post.due_s = None  # the next one is there
            if post.restarts:
                continue
            assert post.due_s is None or now <= post.due_s + 1e-6, f"{replica} was not started"
            since = process.frozen_since_s
            silent = not process.gone and process.serves and since is not None
            limit_s = SUPERVISION.silence_s + 3 * TICK_S
            assert not silent or now - (since or 0.0) <= limit_s, f"{replica} hangs on"
            told = not process.serves or process.gone or process.told_to_sleep
            assert told or not self.to_sleep, f"{replica} is not told to sleep"
        current = self.processes
        restarting = any(post.restarts for post in self.posts.values())
        for process in self.world.all:
            assert process.gone or process in current or restarting, "a process is left over"

    def check_timers(self) -> None:
        """One for the watch, one for each start that goes on or is due, one for each request."""
        starting = sum(not p.gone and not p.serves for p in self.processes)
        due = sum(post.due_s is not None for post in self.posts.values())
        alive = sum(caller.alive for caller in self.callers)
        assert self.clock.ordered <= 1 + starting + due + alive, "a timer is left"

    def check_states(self) -> None:
        asked = self.slumber_asked
        states = self.world.omni.stage_states
        for replica, post in self.posts.items():
            if not post.restarts:
                state = states[replica.stage].replicas[replica.number]
                self.check_state(self.world.processes[replica], post, state, slumbers=asked)

    def check_state(
        self, process: Process, post: Post, state: ReplicaState, *, slumbers: bool
    ) -> None:
        """`slumbers`: it is being told to sleep or to wake, and may be either."""
        words: set[str]
        if process.gone:
            words = {"gone"} if post.down else {"restarting"}
            if post.due_s is not None:
                assert state.restart_in_s is not None
                assert abs(state.restart_in_s - (post.due_s - self.clock())) < 1e-6
        elif not process.serves:
            words = {"restarting"}
        elif post.draining:
            words = {"draining", "silent"} if process.frozen else {"draining"}
        elif process.frozen:
            words = {"silent", "asleep", "ready"}
        elif slumbers:
            words = {"asleep", "ready"}
        elif process.slumber.asleep:
            words = {"asleep"}
        else:  # one that is about to sleep is not asleep
            words = {"ready"} if process.slumber.awake else {"ready", "asleep"}
        assert state.state in words, f"{process.replica} is {words}, and is called {state}"

    # --- rest and end -------------------------------------------------------------------------

    def come_to_rest(self, *, awake: bool) -> None:
        """Everything is ended and acknowledged: nothing is left of any request (I2).

        `awake`: all are, and then whoever asked anything has an answer.
        """
        self.loop.holding = False
        self.loop.do(self.loop.work)
        for process in self.processes:
            self.loop.do(process.thaw)
        if awake:
            self.wake_up(None)
        self.check_callers()
        for caller in self.callers:
            caller.gone = True
            caller.expect(Finished, None)
            if isinstance(caller, Talk):
                caller.closed = True
            if caller.alive and caller.live is not None:
                self.ask(self.world.router.abort(caller.live))
        self.acknowledge_all()
        self.loop.pass_time(2 * PATIENCE_S)
        self.acknowledge_all()
        self.check_answers()
        unanswered = [kind for kind, _, _ in self.questions if kind is not Question.RESTART]
        assert not (awake and unanswered), "who asked waits for an answer"
        assert len(self.world.router) == 0
        assert self.world.router.chunks_under_way == 0 or self.anyone_asleep
        for stage in self.counts:
            assert self.world.omni.admission.live(stage) == 0
        assert not self.world.books.open, "a request has no end for those who watch"
        if not self.anyone_asleep:
            assert not list(self.world.payloads), "a payload is left"
        for process in self.processes:
            assert process.gone or not process.live
            assert process.gone or self.anyone_asleep or not process.store.outstanding
        self.check_timers()
        self.callers = [talk for talk in self.talks if not talk.ended]

    @property
    def anyone_asleep(self) -> bool:
        return any(not p.gone and not p.slumber.awake for p in self.processes)

    def acknowledge_all(self) -> None:
        """Twice: what a worker had under way comes after the acknowledgement."""
        for _ in range(2):
            for process in self.processes:
                while process.answers and (process.pending_aborts or process.pending_interrupts):
                    self.loop.do(process.acknowledge)
                for key in sorted(process.owed) if process.able else ():
                    self.loop.do(lambda p=process, k=key: p.pay(k, end=True))  # type: ignore[misc]
                self.loop.do(process.report)
            self.world.settle()

    def close(self) -> None:
        for caller in self.callers:
            caller.reasons.add(ShutdownError)
        self.closing = self.loop.create_task(self.world.omni.close())
        self.world.settle()

    def check_closed(self) -> None:
        """Nothing is left: no process, no file, no timer, nobody who waits."""
        assert self.closing is not None
        self.closing.result()
        self.loop.holding = False
        self.loop.do(self.loop.work)
        self.check_answers()
        self.check_callers()
        assert not self.questions, f"who asked waits for ever: {self.questions[0]}"
        assert not self.sayings, "who said something waits for ever"
        for caller in self.callers:
            assert caller.gone or caller.outcome is not None or getattr(caller, "ended", False)
        assert not self.world.books.open
        assert all(process.gone for process in self.world.all), "a process is left over"
        assert self.clock.ordered == 0, "a timer is left"
        assert not list(shm_directory().glob(f"antiphon-{self.world.payloads.run}*"))

    def teardown(self) -> None:
        try:
            if hasattr(self, "world") and not self.loop.faults:
                self.finish_up()
        finally:
            self.loop.do(lambda: [task.cancel() for task in asyncio.all_tasks(self.loop)])
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def finish_up(self) -> None:
        if self.closing is None:
            self.come_to_rest(awake=True)
            self.close()
        self.loop.holding = False
        self.loop.do(self.loop.work)
        for _ in range(30):
            if self.closing is None or self.closing.done():
                break
            self.loop.pass_time(1.0)
        assert self.closing is not None
        assert self.closing.done(), "closing takes for ever"
        self.check_closed()
