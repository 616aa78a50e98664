"""`Omni`: the same pipeline without asyncio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from antiphon.orchestrator.api import OmniEvent, OmniRequest, Reply
from antiphon.orchestrator.loop_thread import LoopThread
from antiphon.orchestrator.omni import AsyncOmni
from antiphon.orchestrator.tasks import Progress
from antiphon.pipeline.audio import AudioSource, as_clips
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.topology import Topology


class Omni:
    """One pipeline, started by the constructor; a context manager.

    The arguments are `AsyncOmni`'s. Calls may come from any thread.
    """

    def __init__(
        self,
        pipeline: str | Topology | None = None,
        *,
        deployment: Deployment | str | Path | None = None,
        model: str | Path | Mapping[str, str | Path] | None = None,
        entries: Sequence[str] | None = None,
        modalities: Sequence[str] | None = None,
        inputs: Sequence[str] | None = None,
        in_process: bool | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        self._omni = AsyncOmni(
            pipeline,
            deployment=deployment,
            model=model,
            entries=entries,
            modalities=modalities,
            inputs=inputs,
            in_process=in_process,
            on_progress=on_progress,
        )
        self._thread = LoopThread()
        try:
            self._thread.call(self._omni.start())
        except BaseException:
            self.close()
            raise

    def chat(
        self,
        text: str = "",
        *,
        audio: AudioSource | Sequence[AudioSource] = (),
        **options: Any,
    ) -> Reply:
        """Answer `text`, or what is said in `audio`; options are `OmniRequest`'s.

        `audio` is one clip or several, each an AudioClip or the path of a WAV file.
        """
        clips = as_clips(audio)
        return self.generate(OmniRequest(entry="chat", text=text, audio=clips, **options))

    def say(self, text: str, **options: Any) -> Reply:
        """Speak `text`; options are `OmniRequest`'s."""
        options.setdefault("modalities", ("audio",))
        return self.generate(OmniRequest(entry="speech", text=text, **options))

    def transcribe(self, audio: AudioSource | Sequence[AudioSource], **options: Any) -> Reply:
        """Write down what is said in `audio`, as `chat` takes it: the reply's text. Options are
        `OmniRequest`'s.
        """
        clips = as_clips(audio)
        return self.generate(OmniRequest(entry="transcribe", audio=clips, **options))

    def generate(self, request: OmniRequest) -> Reply:
        """The whole reply. Raises the request's one error."""
        return self._thread.call(self._omni.generate(request))

    def stream(self, request: OmniRequest) -> Iterator[OmniEvent]:
        """Events as they come; the last one is `Finished`. Leaving early aborts the request."""
        events = self._omni.stream(request)
        try:
            while True:
                try:
                    yield self._thread.call(events.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            if not self._thread.closed:  # which has ended the stream
                self._thread.call(events.aclose())

    def abort(self, request_id: str) -> bool:
        """As `AsyncOmni.abort`."""
        return self._thread.call(self._omni.abort(request_id))

    def sleep(self, level: int = 1) -> dict[str, int]:
        """As `AsyncOmni.sleep`."""
        return self._thread.call(self._omni.sleep(level))

    def wake(self, tags: list[str] | None = None) -> None:
        """As `AsyncOmni.wake`."""
        self._thread.call(self._omni.wake(tags))

    def close(self) -> None:
        """Stop every stage. May be called twice."""
        self._thread.close(self._omni.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
