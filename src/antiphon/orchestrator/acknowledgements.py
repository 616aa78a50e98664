"""Commands that every stage concerned must have acknowledged before something is over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from antiphon.orchestrator.replica import Replica
from antiphon.stage.messages import Command

Send = Callable[[Replica, Command], None]


@dataclass(slots=True)
class _Asked:
    awaiting: set[Replica]
    done: Callable[[], None]


class Acknowledgements:
    """One record per question. A replica that is gone owes no answer, also when it is back."""

    def __init__(self, send: Send, gone: Container[Replica]) -> None:
        self._send = send
        self._gone = gone
        self._tokens = itertools.count()
        self._asked: dict[int, _Asked] = {}

    def ask(
        self, commands: Mapping[Replica, Callable[[int], Command]], done: Callable[[], None]
    ) -> None:
        """Send each replica its command, made with the token that the answer will carry.

        `done` is called once when all have answered; at once if there is nobody to ask.
        """
        token = next(self._tokens)
        awaiting = {replica for replica in commands if replica not in self._gone}
        self._asked[token] = _Asked(awaiting, done)
        for replica in list(awaiting):
            self._send(replica, commands[replica](token))
        self._settle(token)

    def answered(self, replica: Replica, token: int) -> None:
        """A replica's answer; one that nobody waits for is ignored."""
        if (asked := self._asked.get(token)) is not None:
            asked.awaiting.discard(replica)
            self._settle(token)

    def lost(self, replica: Replica) -> None:
        """A replica has ended: nothing of what it was asked about is left there."""
        for token in list(self._asked):
            self.answered(replica, token)

    def abandon(self) -> None:
        """No stage answers any more: everything counts as acknowledged."""
        for asked in list(self._asked.values()):
            asked.awaiting.clear()
        for token in list(self._asked):
            self._settle(token)

    def check_integrity(self) -> None:
        """Raise AssertionError if nobody is left to answer what is still waited for."""
        for asked in self._asked.values():
            if not asked.awaiting or any(replica in self._gone for replica in asked.awaiting):
                raise AssertionError("an answer is waited for that nobody owes")

    def __len__(self) -> int:
        return len(self._asked)

    def _settle(self, token: int) -> None:
        asked = self._asked.get(token)
        if asked is not None and not asked.awaiting:
            del self._asked[token]
            asked.done()
