"""Administration: questions to every stage at once, each answered by one message."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping

from antiphon.errors import AntiphonError, ShutdownError, from_wire
from antiphon.orchestrator.clients import StageClient
from antiphon.stage.messages import Acknowledged, Command, Inspection, Measure, Measured

Answer = Acknowledged | Inspection | Measured


class Questions:
    """The answers that are still to come, by token."""

    def __init__(self) -> None:
        self._tokens = itertools.count()
        self._open: dict[int, tuple[str, asyncio.Future[Answer]]] = {}  # with the stage
        self._measuring: dict[str, asyncio.Future[Answer]] = {}  # by stage

    async def ask(
        self, clients: Mapping[str, StageClient], command: Callable[[int], Command]
    ) -> dict[str, Answer]:
        """Send each stage a command, made with the token of its answer; all answers.

        Raises the first stage's error, of those that answer with one or are lost.
        """
        loop = asyncio.get_running_loop()
        futures = {}
        for name, client in clients.items():
            token = next(self._tokens)
            futures[name] = loop.create_future()
            self._open[token] = (name, futures[name])
            client.send(command(token))
        answers = await asyncio.gather(*futures.values())
        return dict(zip(futures, answers, strict=True))

    async def measure(
        self, clients: Mapping[str, StageClient], timeout_s: float
    ) -> dict[str, Measured]:
        """The figures of those stages that give them in time. Raises nothing for the others.

        A stage that has not answered yet is not asked again: its answer is for all who wait.
        """
        futures = {
            name: self._measuring.get(name) or self._ask_to_measure(name, client)
            for name, client in clients.items()
        }
        if not futures:
            return {}
        done, _ = await asyncio.wait(futures.values(), timeout=timeout_s)
        found = {name: future for name, future in futures.items() if future in done}
        answers = {n: f.result() for n, f in found.items() if f.exception() is None}
        return {name: a for name, a in answers.items() if isinstance(a, Measured)}

    def _ask_to_measure(self, name: str, client: StageClient) -> asyncio.Future[Answer]:
        token = next(self._tokens)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[token] = (name, future)
        self._measuring[name] = future
        future.add_done_callback(lambda _: self._measured(name))
        client.send(Measure(token))
        return future

    def _measured(self, name: str) -> None:
        """Answered, or lost; then nobody may be left to be told of it."""
        future = self._measuring.pop(name)
        if not future.cancelled():
            future.exception()

    def answered(self, stage: str, answer: Answer) -> None:
        """A stage's answer; one that nobody waits for is ignored."""
        _, future = self._open.pop(answer.token, (stage, None))
        if future is None or future.done():
            return
        if isinstance(answer, Measured) or answer.error is None:
            future.set_result(answer)
        else:
            error = from_wire(answer.error)
            future.set_exception(type(error)(f"stage '{stage}': {error}"))

    def lost(self, stage: str, why: AntiphonError) -> None:
        """A stage has ended and answers no more."""
        for name, future in self._open.values():
            if name == stage and not future.done():
                future.set_exception(why)
        self._open = {t: a for t, a in self._open.items() if a[0] != stage}

    def abandon(self) -> None:
        """No stage answers any more."""
        for _, future in self._open.values():
            if not future.done():
                future.set_exception(ShutdownError("the pipeline was closed meanwhile"))
        self._open.clear()
