"""`--raw`: sound leaves through a pipe while it is made; a slow or absent listener does no harm."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import wave
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.cli.answer import answer
from antiphon.cli.pipe import PipeWriter
from antiphon.errors import OutputPathError, StageStepError
from antiphon.orchestrator.api import (
    AudioChunk,
    Finished,
    OmniEvent,
    OmniRequest,
    Reply,
    TextDelta,
    Timings,
)
from antiphon.orchestrator.wav import pcm16
from commands import command

RATE = 24_000
REQUEST = OmniRequest(text="hello")


@dataclass
class Pipe:
    """Both ends of a pipe; a test may close either."""

    reading: int
    writing: int

    def read(self, count: int) -> bytes:
        """What is there, up to `count`; waits for the first of it."""
        return os.read(self.reading, count)

    def close(self, end: int) -> None:
        with contextlib.suppress(OSError):
            os.close(end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe(*os.pipe())
    yield made
    made.close(made.reading)
    made.close(made.writing)


async def take(pipe: Pipe, count: int) -> bytes:
    """Exactly `count` bytes, while the loop goes on."""
    os.set_blocking(pipe.reading, False)
    got = b""
    while len(got) < count:
        try:
            got += pipe.read(count - len(got))
        except BlockingIOError:
            await asyncio.sleep(0)
    return got


# --- the writer -----------------------------------------------------------------------------------


@settings(deadline=None)  # an event loop is made for each
@given(st.lists(st.binary(max_size=10_000), max_size=20))
def test_everything_arrives_in_order(blocks: list[bytes]) -> None:
    reading, writing = os.pipe()
    pipe = Pipe(reading, writing)

    async def send() -> bytes:
        writer = PipeWriter(writing)
        for block in blocks:
            writer.write(block)
        got, _ = await asyncio.gather(take(pipe, sum(map(len, blocks))), writer.drain())
        return got

    try:
        assert asyncio.run(send()) == b"".join(blocks)
    finally:
        pipe.close(reading)
        pipe.close(writing)


async def test_a_full_pipe_holds_nothing_up(pipe: Pipe) -> None:
    """Nobody reads: writing returns, the loop runs, only `drain` waits."""
    data = bytes(range(256)) * 4096
    writer = PipeWriter(pipe.writing)
    writer.write(data)
    draining = asyncio.create_task(writer.drain())
    for _ in range(1000):  # turns of the loop, in which the pipe fills up
        await asyncio.sleep(0)
    assert not draining.done()
    assert await take(pipe, len(data)) == data
    await draining


async def test_the_descriptor_stays_as_it_is(pipe: Pipe) -> None:
    """Others may share it, and they expect writes to block."""
    writer = PipeWriter(pipe.writing)
    before = fcntl.fcntl(pipe.writing, fcntl.F_GETFL)
    writer.write(b"sound")
    await writer.drain()
    assert fcntl.fcntl(pipe.writing, fcntl.F_GETFL) == before
    assert os.get_blocking(pipe.writing)


async def test_a_reader_that_is_gone_is_reported(pipe: Pipe) -> None:
    """By whatever is called next, and again after that."""
    writer = PipeWriter(pipe.writing)
    pipe.close(pipe.reading)
    writer.write(b"sound")
    for _ in range(2):
        with pytest.raises(BrokenPipeError):
            await writer.drain()
        with pytest.raises(BrokenPipeError):
            writer.write(b"more")


async def test_what_is_dropped_is_not_written(pipe: Pipe) -> None:
    writer = PipeWriter(pipe.writing)
    writer.write(b"old")
    writer.drop()
    await writer.drain()
    writer.write(b"new")
    assert await take(pipe, 3) == b"new"
    await writer.drain()


async def test_a_file_takes_it_all_at_once(tmp_path: Path) -> None:
    with (tmp_path / "sound").open("wb") as file:
        writer = PipeWriter(file.fileno())
        writer.write(b"a" * 100_000)
        writer.write(b"b")
        await writer.drain()
    assert (tmp_path / "sound").read_bytes() == b"a" * 100_000 + b"b"


def test_a_full_disk_is_one_sentence() -> None:
    async def send(descriptor: int) -> None:
        writer = PipeWriter(descriptor)
        writer.write(b"sound")
        await writer.drain()

    with (
        Path("/dev/full").open("wb", buffering=0) as file,
        pytest.raises(OutputPathError, match="cannot be written: No space left"),
    ):
        asyncio.run(send(file.fileno()))


# --- an answer ------------------------------------------------------------------------------------


@dataclass
class Script:
    """Stands in for `AsyncOmni`: these chunks, each when `go` has been released once for it."""

    chunks: Sequence[np.ndarray]
    go: asyncio.Semaphore | None = None
    error: Exception | None = None
    given: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def audio(self) -> np.ndarray:
        return np.concatenate(list(self.chunks))

    async def stream(self, request: OmniRequest) -> AsyncGenerator[OmniEvent]:
        try:
            yield TextDelta("Good ")
            for samples in self.chunks:
                if self.go is not None:
                    await self.go.acquire()
                self.given += 1
                yield AudioChunk(samples, RATE, 0)
            if self.error is not None:
                raise self.error
            yield TextDelta("day.")
            timings = Timings(total_s=1.0, audio_s=self.audio.size / RATE)
            yield Finished(Reply("Good day.", self.audio, RATE, "stop", timings))
        finally:
            self.closed.set()


def files(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def noise(*sizes: int) -> list[np.ndarray]:
    """Chunks of these sizes, some samples beyond ±1."""
    rng = np.random.default_rng(7)
    return [(1.2 * rng.uniform(-1, 1, size)).astype(np.float32) for size in sizes]


async def test_raw_bytes_are_those_of_the_file(
    pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the player gets is what the WAV file holds, and the text is out of its way."""
    script = Script(noise(1000, 1, 5000, 0, 777))
    task = asyncio.create_task(
        answer(script, REQUEST, tmp_path / "x.wav", PipeWriter(pipe.writing))
    )
    raw = await take(pipe, 2 * script.audio.size)
    reply = await task
    assert reply.audio is not None
    assert raw == pcm16(reply.audio)
    with wave.open(str(tmp_path / "x.wav")) as sound:
        assert sound.readframes(sound.getnframes()) == raw
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Good day.\nwrote ")


async def test_text_goes_to_stdout_without_raw(capsys: pytest.CaptureFixture[str]) -> None:
    await answer(Script(noise(10)), REQUEST, None)
    assert capsys.readouterr().out == "Good day.\n"


async def test_each_chunk_is_heard_before_the_next_is_made(pipe: Pipe) -> None:
    script = Script(noise(100, 200, 300), asyncio.Semaphore(0))
    task = asyncio.create_task(answer(script, REQUEST, None, PipeWriter(pipe.writing)))
    assert script.go is not None
    for number, samples in enumerate(script.chunks, 1):
        script.go.release()
        assert await take(pipe, 2 * samples.size) == pcm16(samples)
        assert script.given == number
    await task


async def test_a_slow_listener_holds_up_neither_text_nor_file(
    pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Far more sound than a pipe holds: everything else is done before any of it is read."""
    script = Script(noise(500_000, 500_000))
    task = asyncio.create_task(
        answer(script, REQUEST, tmp_path / "x.wav", PipeWriter(pipe.writing))
    )
    await script.closed.wait()
    await asyncio.sleep(0)
    assert not task.done()
    assert files(tmp_path) == ["x.wav"]
    assert capsys.readouterr().err.startswith("Good day.\n")
    assert await take(pipe, 2 * script.audio.size) == pcm16(script.audio)
    await task


async def test_a_player_that_quits_ends_the_request(pipe: Pipe, tmp_path: Path) -> None:
    """The stream is closed, which aborts the request, and no file appears."""
    script = Script(noise(*[100] * 50), asyncio.Semaphore(0))
    assert script.go is not None
    task = asyncio.create_task(
        answer(script, REQUEST, tmp_path / "x.wav", PipeWriter(pipe.writing))
    )
    script.go.release()
    await take(pipe, 200)
    pipe.close(pipe.reading)
    for _ in script.chunks:
        script.go.release()
        await asyncio.sleep(0)
    with pytest.raises(BrokenPipeError):
        await task
    assert script.closed.is_set()
    assert script.given < len(script.chunks)
    assert files(tmp_path) == []


async def test_an_answer_that_fails_is_not_played_to_its_end(pipe: Pipe) -> None:
    script = Script(noise(500_000), error=StageStepError("stage 'talker' failed in a step"))
    writer = PipeWriter(pipe.writing)
    with pytest.raises(StageStepError):
        await answer(script, REQUEST, None, writer)
    await writer.drain()  # nothing waits any more, though nobody has read


# --- the command ----------------------------------------------------------------------------------

SAY = ("say", "Good morning. The train leaves at seven.", "--raw")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_command_writes_the_sound_and_the_file(workplace: Path) -> None:
    done = subprocess.run(
        command([*SAY, "--out", "x.wav"]),
        cwd=workplace,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with wave.open(str(workplace / "x.wav")) as sound:
        assert sound.readframes(sound.getnframes()) == done.stdout
    assert b"playback: " in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_command_ends_quietly_with_its_player(workplace: Path) -> None:
    with subprocess.Popen(
        command((*SAY, "--no-progress")),
        cwd=workplace,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(process.stdout.read(100)) == 100
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 1
    assert list(workplace.iterdir()) == []
