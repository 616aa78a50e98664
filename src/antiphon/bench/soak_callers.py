"""Makes the calls of a soak, and writes down how each one ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
import time
from collections.abc import Callable, Iterator

from antiphon.bench.soak_calls import QUESTIONS, Calls, Way
from antiphon.bench.soak_record import Called, Kind, Outcome
from antiphon.errors import AntiphonError, CallerError
from antiphon.orchestrator.api import Finished, OmniRequest, Reply
from antiphon.orchestrator.omni import AsyncOmni
from antiphon.orchestrator.sessions import Session

LATE = "late"  # the code of a session that its caller has given up, as sessions have no deadline
GUARD_S = 30.0  # after its deadline a call that still runs is given up
_STAGE = re.compile(r"stage '([a-z0-9_-]+)(?:/\d+)?'")


class Callers:
    """`ended` is told of each call; a `clock` gives seconds since the soak began."""

    def __init__(
        self,
        omni: AsyncOmni,
        calls: Calls,
        *,
        seed: int,
        deadline_s: float,
        clock: Callable[[], float],
        record: list[Called],
    ) -> None:
        self._omni = omni
        self._calls = calls
        self._seed = seed
        self._deadline_s = deadline_s
        self._clock = clock
        self._record = record
        self._numbers = itertools.count()
        self.by_label: dict[str, Called] = {}

    @property
    def under_way(self) -> list[Called]:
        """Calls without an outcome."""
        return [call for call in self._record if call.outcome is None]

    async def loop(self, number: int, over: asyncio.Event) -> None:
        """One caller, who calls again when its answer has ended, until it is `over`."""
        draw = random.Random(f"{self._seed} caller {number}")
        while not over.is_set():
            call = await self.call(self._calls.draw(draw), draw)
            pause_s = draw.uniform(0.0, 0.3) if call.outcome is not Outcome.FAILED else 1.0
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), pause_s)

    async def call(self, kind: Kind, draw: random.Random) -> Called:
        """Make one call; raises nothing that a pipeline may raise."""
        label = f"soak-{next(self._numbers)}-{kind}"
        way, question = self._calls.way(kind, draw), draw.choice(QUESTIONS)
        deadline_s = draw.uniform(0.05, 1.5) if kind is Kind.HASTY else self._deadline_s
        call = Called(
            label=label,
            kind=kind,
            stages=way.stages,
            began_s=self._clock(),
            deadline_s=deadline_s,
        )
        self._record.append(call)
        self.by_label[label] = call
        try:
            async with asyncio.timeout(deadline_s + GUARD_S):
                with self._failing(call):
                    if kind is Kind.SESSION:
                        await self._session(call, way, draw)
                    elif kind is Kind.BAD:
                        await self._bad(call, self._calls.bad(draw, label, deadline_s))
                    else:
                        request = self._calls.request(way, question, deadline_s, label)
                        await self._request(call, way, request, draw)
        except TimeoutError:
            self._end(call, Outcome.HUNG)
        return call

    # --- kinds --------------------------------------------------------------------------------

    async def _request(
        self, call: Called, way: Way, request: OmniRequest, draw: random.Random
    ) -> None:
        after_s = draw.uniform(0.0, 2.0)
        match call.kind:
            case Kind.LEAVE:
                await self._leave(call, request, after_s)
            case Kind.ABORT:
                aborting = asyncio.create_task(self._abort(call, after_s))
                try:
                    reply = await self._reply(call, request)
                finally:
                    call.ended_s = self._clock()  # whatever is awaited still
                    await aborting
                self._judge(call, way, request.text, reply)
            case _:
                reply = await self._reply(call, request)
                self._judge(call, way, request.text, reply)

    async def _reply(self, call: Called, request: OmniRequest) -> Reply | None:
        """Every outcome that the caller is given is counted."""
        reply = None
        async for event in self._omni.stream(request):
            if isinstance(event, Finished):
                reply = event.reply
                call.outcomes += 1
                self._end(call, _of(reply))
        return reply

    async def _leave(self, call: Called, request: OmniRequest, after_s: float) -> None:
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await self._reply(call, request)
        if call.outcome is None:
            call.outcomes += 1
            self._end(call, Outcome.LEFT)
            call.letting_go_s = time.monotonic() - began - after_s

    async def _abort(self, call: Called, after_s: float) -> None:
        await asyncio.sleep(after_s)
        began = time.monotonic()
        await self._omni.abort(call.label)
        call.letting_go_s = time.monotonic() - began

    async def _bad(self, call: Called, request: OmniRequest) -> None:
        call.wrong = "a bad input was answered"
        await self._reply(call, request)

    async def _session(self, call: Called, way: Way, draw: random.Random) -> None:
        """One to three segments; each one may be interrupted."""
        session = self._omni.session(
            entry=way.entry,
            modalities=way.modalities,
            sampling=self._calls.sampling(way),
            request_id=call.label,
        )
        try:
            async with asyncio.timeout(call.deadline_s):
                await session.__aenter__()
                for _ in range(draw.randint(1, 3)):
                    await self._segment(call, session, way, draw)
                call.outcomes += 1
                self._end(call, Outcome.WHOLE)
        except TimeoutError:
            call.outcomes += 1
            call.code, call.message = LATE, "the session's caller has given up"
            self._end(call, Outcome.FAILED)
        finally:
            began = time.monotonic()
            with contextlib.suppress(CallerError):  # it was never entered
                await session.close()
            call.letting_go_s = max(call.letting_go_s, time.monotonic() - began)

    async def _segment(self, call: Called, session: Session, way: Way, draw: random.Random) -> None:
        question, leaves, after_s = draw.choice(QUESTIONS), draw.random() < 0.5, draw.uniform(0, 2)
        interrupting = None
        try:
            number = await session.append(question)
            if leaves:
                interrupting = asyncio.create_task(self._interrupt(call, session, after_s))
            async for event in session:
                if event.segment == number and isinstance(event.event, Finished):
                    self._check_segment(call, way, number, question, event.event.reply)
                    break
        finally:
            call.ended_s = self._clock()  # so far: there may be another segment
            if interrupting is not None:
                await interrupting

    async def _interrupt(self, call: Called, session: Session, after_s: float) -> None:
        await asyncio.sleep(after_s)
        began = time.monotonic()
        await session.interrupt()
        call.letting_go_s = max(call.letting_go_s, time.monotonic() - began)

    def _check_segment(
        self, call: Called, way: Way, number: int, question: str, reply: Reply
    ) -> None:
        """The first one is answered as a request is; the others depend on what was said before."""
        if number == 0 and reply.finish_reason in ("stop", "length"):
            call.wrong = call.wrong or self._calls.wrong(way, question, reply)

    # --- outcomes -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _failing(self, call: Called) -> Iterator[None]:
        """An error of the pipeline's is the call's outcome."""
        try:
            yield
        except AntiphonError as error:
            call.outcomes += 1
            refused = call.kind is Kind.BAD and isinstance(error, CallerError)
            call.code, call.message = error.code, str(error)
            call.stage = _named(call.message)
            call.wrong = None
            self._end(call, Outcome.REFUSED if refused else Outcome.FAILED)

    def _judge(self, call: Called, way: Way, question: str, reply: Reply | None) -> None:
        if reply is not None and call.outcome is Outcome.WHOLE:
            call.wrong = self._calls.wrong(way, question, reply)

    def _end(self, call: Called, outcome: Outcome) -> None:
        call.outcome = outcome
        if call.ended_s is None:
            call.ended_s = self._clock()


def _of(reply: Reply) -> Outcome:
    return Outcome.ABORTED if reply.finish_reason == "abort" else Outcome.WHOLE


def _named(message: str) -> str | None:
    """The stage that an error names."""
    stage = _STAGE.search(message)
    return None if stage is None else stage[1]
