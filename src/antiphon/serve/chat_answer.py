"""One answer of `/v1/chat/completions`, from the pipeline's events: whole or as it comes."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import numpy as np
from msgspec import UNSET, UnsetType

from antiphon.orchestrator.api import AudioChunk, Finished, OmniRequest, Reply, TextDelta
from antiphon.serve import sound_out
from antiphon.serve.answers import begun, events_of, reply_to
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
from antiphon.serve.past_answers import PastAnswers
from antiphon.serve.service import Service
from antiphon.serve.sse import DONE, error_event


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
        reply = await reply_to(self.service, self.request)
        return Completion(
            id=self.id,
            created=self.created,
            model=self.service.model,
            choices=(ChoiceObject(await self._message(reply), finish_reason(reply)),),
            usage=usage_of(reply.usage),
            antiphon=self._extra(reply),
        ).to_json()

    def chunks(self) -> AsyncGenerator[bytes]:
        """The events, as they come. Closing it ends the request on every stage.

        Raises as `whole` if nothing has come by then; a later failure is the last event.
        """
        return begun(self._chunks(), error_event)

    async def _chunks(self) -> AsyncGenerator[bytes]:
        audio_id = None if self.body.sound is None else self.past.new_id()
        write = Chunks(self.id, self.created, self.service.model, audio_id, self.body.reports_usage)
        sound = None if audio_id is None else self._encoder()
        opening = write.opening()  # until it has been sent
        async with contextlib.aclosing(events_of(self.service, self.request)) as events:
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

    def _encoder(self) -> sound_out.Encoder:
        rate = self.service.omni.topology.sample_rate
        return sound_out.make_encoder("pcm16", rate, streaming=True)

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
        last = b""
        if write.audio_id is not None:
            expires_at = self.past.keep(write.audio_id, reply.text)
            last = write.sound(sound) + write.expiry(expires_at)
        return last + write.ending(reply, self._extra(reply)) + DONE

    def _extra(self, reply: Reply) -> Extra | UnsetType:
        return extra(reply) if self.body.timeline else UNSET
