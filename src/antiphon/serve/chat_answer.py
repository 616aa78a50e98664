"""One answer of `/v1/chat/completions`, from the pipeline's events: whole or as it comes."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import numpy as np
from msgspec import UNSET, UnsetType

from antiphon.errors import AntiphonError, ShutdownError
from antiphon.orchestrator.api import AudioChunk, Finished, OmniEvent, OmniRequest, Reply, TextDelta
from antiphon.serve import sound_out
from antiphon.serve.chat_output import (
    AudioObject,
    ChoiceObject,
    Chunks,
    Completion,
    Extra,
    MessageObject,
    extra,
    finish_reason,
    usage_of,
)
from antiphon.serve.chat_protocol import ChatRequest
from antiphon.serve.errors import ABORTED, ApiError
from antiphon.serve.past_answers import PastAnswers
from antiphon.serve.service import Service
from antiphon.serve.sse import DONE, error_event
from antiphon.serve.stop_strings import until_stop


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes of `request`, the pipeline's part of the call `body`."""

    service: Service
    body: ChatRequest
    request: OmniRequest
    past: PastAnswers
    id: str
    created: int  # Unix seconds

    async def whole(self) -> bytes:
        """The object. Raises what the request fails with, ApiError if it is aborted."""
        reply = await self._reply()
        return Completion(
            id=self.id,
            created=self.created,
            model=self.service.model,
            choices=(ChoiceObject(await self._message(reply), finish_reason(reply)),),
            usage=usage_of(reply.usage),
            antiphon=self._extra(reply),
        ).to_json()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The events, as they come. Closing it ends the request on every stage.

        Raises as `whole` if nothing has come by then; a later failure is the last event.
        """
        audio_id = None if self.body.sound is None else self.past.new_id()
        write = Chunks(self.id, self.created, self.service.model, audio_id, self.body.reports_usage)
        sound = None if audio_id is None else self._encoder()
        opening = write.opening()  # until it has been sent
        try:
            async with contextlib.aclosing(self._events()) as events:
                async for event in events:
                    match event:
                        case TextDelta(text):
                            part = write.text(text)
                        case AudioChunk(samples) if sound is not None:
                            part = write.sound(await sound_out.feed(sound, samples))
                        case Finished(reply):
                            rest = b"" if sound is None else await sound_out.finish(sound)
                            part = self._ending(write, reply, rest)
                        case _:
                            part = b""
                    if part:
                        yield opening + part
                        opening = b""
        except (AntiphonError, ApiError) as error:
            if opening:
                raise
            yield error_event(error)

    def _encoder(self) -> sound_out.Encoder:
        rate = self.service.omni.topology.sample_rate
        return sound_out.make_encoder("pcm16", rate, streaming=True)

    def _events(self) -> AsyncGenerator[OmniEvent]:
        """The pipeline's, up to a stop string."""
        omni = self.service.omni
        events = omni.stream(self.request)
        if not self.body.stop:
            return events
        return until_stop(events, self.body.stop, lambda: omni.abort(self.id))

    async def _reply(self) -> Reply:
        async with contextlib.aclosing(self._events()) as events:
            async for event in events:
                if isinstance(event, Finished):
                    _check_whole(event.reply)
                    return event.reply
        raise ShutdownError("the request's stream ended without an outcome")

    async def _message(self, reply: Reply) -> MessageObject:
        if self.body.sound is None:
            return MessageObject(reply.text)
        # An answer without a word has no sound.
        samples = np.zeros(0, np.float32) if reply.audio is None else reply.audio
        data = await sound_out.encode(self.body.sound.format, samples, reply.sample_rate)
        id = self.past.new_id()
        expires_at = self.past.keep(id, reply.text)
        audio = AudioObject(id, base64.b64encode(data).decode(), expires_at, reply.text)
        return MessageObject(None, audio)

    def _ending(self, write: Chunks, reply: Reply, sound: bytes) -> bytes:
        """The last events, after the rest of the `sound`."""
        _check_whole(reply)
        last = b""
        if write.audio_id is not None:
            expires_at = self.past.keep(write.audio_id, reply.text)
            last = write.sound(sound) + write.expiry(expires_at)
        return last + write.ending(reply, self._extra(reply)) + DONE

    def _extra(self, reply: Reply) -> Extra | UnsetType:
        return extra(reply) if self.body.timeline else UNSET


def _check_whole(reply: Reply) -> None:
    """An answer that was broken off is none."""
    if reply.finish_reason == "abort":
        raise ApiError(ABORTED, "the call was ended by an abort", code="request_aborted")
