"""Administration: questions to every replica at once, each answered by one message."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping

from antiphon.errors import AntiphonError, ShutdownError, from_wire
from antiphon.orchestrator.clients import StageClient
from antiphon.orchestrator.replica import Replica
from antiphon.stage.messages import Acknowledged, Command, Inspection, Measure, Measured

Answer = Acknowledged | Inspection | Measured
Done = Callable[[Replica], None]


class Questions:
    """The answers that are still to come, by token."""

    def __init__(self) -> None:
        self._tokens = itertools.count()
        # By token: who was asked, and what is done when it answers without an error.
        self._open: dict[int, tuple[Replica, asyncio.Future[Answer], Done]] = {}
        self._measuring: dict[Replica, asyncio.Future[Answer]] = {}

    async def ask(
        self,
        clients: Mapping[Replica, StageClient],
        command: Callable[[int], Command],
        done: Done = lambda replica: None,
    ) -> dict[Replica, Answer]:
        """Send each replica a command, made with the token of its answer; all answers.

        `done` is told of each that has done it, also if nobody waits any more. Raises the first
        one's error, of those that answer with one or are lost; but when all have.
        """
        futures = {r: self._send(r, client, command, done) for r, client in clients.items()}
        await asyncio.gather(*futures.values(), return_exceptions=True)
        return {replica: future.result() for replica, future in futures.items()}

    def tell(
        self, replica: Replica, client: StageClient, command: Callable[[int], Command], done: Done
    ) -> None:
        """Send a replica a command whose answer nobody waits for; `done` as with `ask`."""
        future = self._send(replica, client, command, done)
        future.add_done_callback(lambda told: told.cancelled() or told.exception())

    def _send(
        self,
        replica: Replica,
        client: StageClient,
        command: Callable[[int], Command],
        done: Done = lambda replica: None,
    ) -> asyncio.Future[Answer]:
        token = next(self._tokens)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[token] = (replica, future, done)
        client.send(command(token))
        return future

    async def measure(
        self, clients: Mapping[Replica, StageClient], timeout_s: float
    ) -> dict[Replica, Measured]:
        """The figures of those that give them in time. Raises nothing for the others.

        One that has not answered yet is not asked again: its answer is for all who wait.
        """
        futures = {
            replica: self._measuring.get(replica) or self._ask_to_measure(replica, client)
            for replica, client in clients.items()
        }
        if not futures:
            return {}
        done, _ = await asyncio.wait(futures.values(), timeout=timeout_s)
        found = {replica: future for replica, future in futures.items() if future in done}
        answers = {r: f.result() for r, f in found.items() if f.exception() is None}
        return {replica: a for replica, a in answers.items() if isinstance(a, Measured)}

    def _ask_to_measure(self, replica: Replica, client: StageClient) -> asyncio.Future[Answer]:
        future = self._measuring[replica] = self._send(replica, client, Measure)
        future.add_done_callback(lambda _: self._measured(replica))
        return future

    def _measured(self, replica: Replica) -> None:
        """Answered, or lost; then nobody may be left to be told of it."""
        future = self._measuring.pop(replica)
        if not future.cancelled():
            future.exception()

    def answered(self, replica: Replica, answer: Answer) -> None:
        """A replica's answer; one that nobody waits for is ignored."""
        if answer.token not in self._open:
            return
        _, future, done = self._open.pop(answer.token)
        error = None if isinstance(answer, Measured) else answer.error
        if error is None:
            done(replica)
        if future.done():
            return
        if error is None:
            future.set_result(answer)
        else:
            why = from_wire(error)
            future.set_exception(type(why)(f"stage '{replica}': {why}"))

    def lost(self, replica: Replica, why: AntiphonError) -> None:
        """A replica has ended and answers no more."""
        for asked, future, _ in self._open.values():
            if asked == replica and not future.done():
                future.set_exception(type(why)(str(why)))  # each raises one of its own
        self._open = {t: a for t, a in self._open.items() if a[0] != replica}

    def check_integrity(self) -> None:
        """Raise AssertionError if somebody waits for figures that nobody was asked for."""
        open_ = {id(future) for _, future, _ in self._open.values()}
        if any(id(f) not in open_ and not f.done() for f in self._measuring.values()):
            raise AssertionError("figures are waited for that nobody was asked for")

    def abandon(self) -> None:
        """No stage answers any more."""
        for _, future, _ in self._open.values():
            if not future.done():
                future.set_exception(ShutdownError("the pipeline was closed meanwhile"))
        self._open.clear()
