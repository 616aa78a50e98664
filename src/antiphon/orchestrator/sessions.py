"""A conversation whose history stays in the model: `Session`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

import msgspec

from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.orchestrator.api import OmniRequest, SessionEvent
from antiphon.orchestrator.segments import LiveSession, NewSegment
from antiphon.pipeline.detokenize import Detokenizer
from antiphon.pipeline.topology import Stage

Sampling = dict[str, dict[str, object]]


class SessionIntake(Protocol):
    """What a session needs of the models' files. Methods may take a while; any thread."""

    def opening(self, request: OmniRequest, path: Sequence[Stage]) -> list[int]:
        """The prompt that a conversation begins with."""
        ...

    def continuation(self, request: OmniRequest, path: Sequence[Stage]) -> list[int]:
        """What follows the last answer when the request's text is said next."""
        ...

    def detokenizer(self, request: OmniRequest, path: Sequence[Stage]) -> Detokenizer | None:
        """A new one for one segment's ids; None if the request wants no text."""
        ...


class Session:
    """A conversation, entered with `async with` and read with `async for`.

    What the caller says and what is answered to it is a *segment*, numbered from 0. Events carry
    their segment's number; those of two segments may mix, as the sound of one is made while the
    next is written. Each segment ends with one `Finished`, whose timings count from `append`; its
    finish reason is that of the text (stop, length), "interrupt", or "abort" if the session was
    closed before its end.

    An error in any segment ends the session: iterating raises it once, and ends. Methods belong to
    one event loop; several tasks may use them.

    A slow reader loses nothing, so events are kept until they are read. What bounds them is the
    number of segments: at most `MAX_SEGMENTS` may wait, run, or be unread.
    """

    def __init__(
        self,
        request: OmniRequest,
        enter: Callable[[OmniRequest], tuple[LiveSession, SessionIntake]],
    ) -> None:
        self._request = request  # without a text; its sampling is that of the next segment
        self._enter = enter
        self._entered: tuple[LiveSession, SessionIntake] | None = None
        self._order = asyncio.Lock()  # segments are numbered in the order of the calls

    async def __aenter__(self) -> Self:
        """Raises CallerError if the pipeline cannot hold this session, StageDiedError if a stage
        that it needs is gone.
        """
        if self._entered is not None:
            raise InvalidRequestError("the session has been entered already; open a new one")
        self._entered = self._enter(self._request)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- what is said -------------------------------------------------------------------------

    async def append(
        self, text: str, *, keep_tokens: int | None = None, sampling: Sampling | None = None
    ) -> int:
        """Say `text` next; the number of the segment. It waits for those before it.

        `keep_tokens` has the model forget all but so many of the last tokens of the conversation
        first. `sampling` is by stage, as `OmniRequest.sampling`, and holds from this segment on, in
        place of what was given before. Raises CallerError, which leaves the session as it is;
        InputTooLongError for a conversation that has outgrown the model comes as the session's
        error.
        """
        if keep_tokens is not None and keep_tokens < 0:
            raise InvalidRequestError(f"keep_tokens is {keep_tokens}; give 0 or more tokens")
        kind = UpdateKind.EXTEND if keep_tokens is None else UpdateKind.WINDOW
        async with self._order:
            fresh = self._live.empty
            new = await self._prepared(text, sampling, kind, keep_tokens or 0, fresh=fresh)
            return self._add(new)

    async def replace(self, text: str, *, sampling: Sampling | None = None) -> int:
        """Begin the conversation anew with `text`; the number of the segment.

        Everything older is interrupted first; the messages that the session was opened with stay.
        """
        async with self._order:
            new = await self._prepared(text, sampling, UpdateKind.REPLACE, 0, fresh=True)
            self._live.require_room()
            await self._live.interrupt()
            return self._add(new)

    async def interrupt(self) -> None:
        """End every segment so far; returns when all stages have acknowledged it.

        From the call on none of their text or audio is yielded, but for one `Finished` each, whose
        reply has all that was made. What the entry stage had written stays in the conversation,
        without its last token; it may be ahead of what was heard. A segment that had not begun is
        dropped, and the model never sees its text.
        """
        await self._live.interrupt()

    async def close(self) -> None:
        """End the session on every stage and, once what is left has been read, its iteration.

        Segments that are under way finish with reason "abort". May be called twice.
        """
        self._live.end(None, "request")
        await self._live.ended.wait()

    # --- what comes back ----------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionEvent:
        live = self._live
        while True:
            item = await live.events.get()
            if item is None:
                live.events.put_nowait(None)  # for whoever asks again
                raise StopAsyncIteration
            if isinstance(item, AntiphonError):
                # The session keeps it: what is raised holds the session.
                raise type(item)(str(item))
            if live.read(item):
                return item

    # --- parts --------------------------------------------------------------------------------

    @property
    def _live(self) -> LiveSession:
        return self._opened()[0]

    def _opened(self) -> tuple[LiveSession, SessionIntake]:
        if self._entered is None:
            raise InvalidRequestError("the session is not open; enter it with 'async with'")
        return self._entered

    async def _prepared(
        self, text: str, sampling: Sampling | None, kind: UpdateKind, keep: int, *, fresh: bool
    ) -> NewSegment:
        """Everything about a segment that needs no stage. `fresh`: a conversation begins."""
        live, intake = self._opened()
        request = msgspec.structs.replace(
            self._request,
            text=text,
            messages=self._request.messages if fresh else [],
            sampling=self._request.sampling if sampling is None else sampling,
        )
        path = request.check(live.plan.topology)
        make = intake.opening if fresh else intake.continuation
        prompt = await asyncio.to_thread(make, request, path)
        return NewSegment(request, prompt, intake.detokenizer(request, path), kind, keep)

    def _add(self, new: NewSegment) -> int:
        number = self._live.add(new)
        self._request = msgspec.structs.replace(self._request, sampling=new.request.sampling)
        return number
