"""The voice pipeline as users meet it: real engines in processes of their own, real models."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import numpy as np
import pytest

from antiphon import (
    AntiphonError,
    AsyncOmni,
    AudioChunk,
    Finished,
    OmniRequest,
    TextDelta,
)
from antiphon.errors import (
    DeadlineExceededError,
    DuplicateRequestError,
    EmptyInputError,
    InvalidRequestError,
)
from held import EMPTY, STAGES, idle
from judge import Judge, plain
from leftovers import run_files

# The first test waits for the stages, on a new machine also for their models.
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(400)]

SENTENCES = Path(__file__).parents[1] / "voice" / "sentences.txt"
QUESTION = "What is the capital of France?"


async def test_answers_in_text_and_speech(voice: AsyncOmni, judge: Judge) -> None:
    """C72: on a machine without a GPU like on any other."""
    events = [event async for event in voice.stream(OmniRequest(text=QUESTION))]
    finished = events[-1]
    assert isinstance(finished, Finished)
    reply = finished.reply
    assert reply.text == "The capital of France is Paris."
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == reply.text
    chunks = [e.samples for e in events if isinstance(e, AudioChunk)]
    assert reply.audio is not None
    assert np.array_equal(np.concatenate(chunks), reply.audio)
    assert judge.transcribe(reply.audio, reply.sample_rate) == plain(reply.text)
    assert await idle(voice) == EMPTY


async def test_says_one_sentence(voice: AsyncOmni, judge: Judge) -> None:
    text = "You should drink plenty of water every day."
    reply = await voice.generate(OmniRequest(entry="speech", text=text, modalities=("audio",)))
    assert reply.audio is not None
    assert judge.transcribe(reply.audio, reply.sample_rate) == plain(text)


async def test_long_answers_are_spoken_sentence_by_sentence(voice: AsyncOmni) -> None:
    request = OmniRequest(text="Tell me about the ocean.", sampling={"thinker": {"max_tokens": 32}})
    events = [event async for event in voice.stream(request)]
    parts = [e.part for e in events if isinstance(e, AudioChunk)]
    assert len(parts) > 1
    assert parts == sorted(parts)
    assert await idle(voice) == EMPTY


async def test_text_only_requests_cost_the_other_stages_nothing(voice: AsyncOmni) -> None:
    """C81, C83: no payload is built, nothing is sent downstream."""
    before = await voice.inspect()
    reply = await voice.generate(OmniRequest(text=QUESTION, modalities=("text",)))
    after = await voice.inspect()
    assert reply.text == "The capital of France is Paris."
    assert reply.audio is None
    for stage in ("hearing", "talker", "code2wav"):
        assert after[stage].steps == before[stage].steps


async def test_requests_at_once_answer_as_alone(voice: AsyncOmni) -> None:
    short = {"thinker": {"max_tokens": 12}}
    requests = [OmniRequest(text=q, sampling=short) for q in (QUESTION, "What is water?")]
    alone = [await voice.generate(request) for request in requests]
    together = await asyncio.gather(*(voice.generate(request) for request in requests))
    assert [reply.text for reply in together] == [reply.text for reply in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.audio is not None
        assert other.audio is not None
        assert one.audio.shape == other.audio.shape


async def test_abort_gives_one_outcome_with_what_there_was(voice: AsyncOmni) -> None:
    """C113."""
    text = ""
    outcomes = []
    request = OmniRequest(text="Tell me about the ocean.", request_id="mine")
    async for event in voice.stream(request):
        if isinstance(event, TextDelta):
            text += event.text
            if len(text) > 20:
                asyncio.get_running_loop().call_soon(
                    lambda: asyncio.ensure_future(voice.abort("mine"))
                )
        elif isinstance(event, Finished):
            outcomes.append(event.reply)
    assert [reply.finish_reason for reply in outcomes] == ["abort"]
    assert outcomes[0].text == text
    assert await idle(voice) == EMPTY


async def test_leaving_the_stream_aborts(voice: AsyncOmni) -> None:
    """C66: nobody decodes for a client that has left."""
    stream = voice.stream(OmniRequest(text="Tell me about the ocean."))
    async for _ in stream:
        break
    await stream.aclose()
    assert await idle(voice) == EMPTY


async def test_unknown_abort_is_reported(voice: AsyncOmni) -> None:
    assert not await voice.abort("nobody")


async def test_duplicate_live_id_is_rejected_and_free_afterwards(voice: AsyncOmni) -> None:
    """C87."""
    async for event in voice.stream(OmniRequest(text=QUESTION, request_id="a")):
        if isinstance(event, TextDelta):
            with pytest.raises(DuplicateRequestError):
                await voice.generate(OmniRequest(text=QUESTION, request_id="a"))
    await voice.generate(OmniRequest(text=QUESTION, request_id="a", modalities=("text",)))


async def test_deadline_ends_the_request_everywhere(voice: AsyncOmni) -> None:
    with pytest.raises(DeadlineExceededError):
        await voice.generate(OmniRequest(text="Tell me about the ocean.", deadline_s=0.3))
    assert await idle(voice) == EMPTY


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (OmniRequest(text="   "), EmptyInputError),
        (OmniRequest(entry="speech", text="…", modalities=("audio",)), EmptyInputError),
        (OmniRequest(text="x", sampling={"thinker": {"temperature": -1}}), InvalidRequestError),
        (OmniRequest(text="x", sampling={"tinker": {}}), InvalidRequestError),
    ],
)
async def test_bad_requests_hurt_nobody(
    voice: AsyncOmni, request_: OmniRequest, error: type[AntiphonError]
) -> None:
    """C54."""
    with pytest.raises(error):
        await voice.generate(request_)
    assert await idle(voice) == EMPTY


async def test_sleep_and_wake(voice: AsyncOmni) -> None:
    """C55, C123: on CPU nothing can be given back, requests wait, the answer is the same."""
    before = await voice.generate(OmniRequest(text=QUESTION, modalities=("text",)))
    assert await voice.sleep(1) == dict.fromkeys(STAGES, 0)
    waiting = asyncio.ensure_future(
        voice.generate(OmniRequest(text=QUESTION, modalities=("text",)))
    )
    await voice.inspect()
    assert not waiting.done()
    await voice.wake()
    assert (await waiting).text == before.text


@pytest.mark.slow
async def test_forty_sentences_are_understood(voice: AsyncOmni, judge: Judge) -> None:
    """The word error rate through the whole pipeline, as `antiphon say` would speak them."""
    texts = [line for line in SENTENCES.read_text().splitlines() if line.strip()]
    started = time.monotonic()
    replies = await asyncio.gather(
        *(
            voice.generate(OmniRequest(entry="speech", text=text, modalities=("audio",)))
            for text in texts
        )
    )
    seconds = time.monotonic() - started
    waves = [reply.audio for reply in replies if reply.audio is not None]
    verdict = judge.score(waves, texts, replies[0].sample_rate)
    spoken = sum(wave.size for wave in waves) / replies[0].sample_rate
    print(f"word error rate {verdict.word_error_rate:.1%}, RTF {seconds / spoken:.2f}")
    assert len(waves) == 40
    assert verdict.word_error_rate <= 0.05
    assert seconds < spoken


@pytest.mark.slow
async def test_two_hundred_random_aborts(voice: AsyncOmni) -> None:
    """Every request ends once, blocks and shared memory return, the next request answers."""
    before = run_files()
    chance = random.Random(7)
    outcomes = {"abort": 0, "stop": 0, "length": 0}

    async def one(number: int) -> None:
        label = f"r{number}"
        limit = {"thinker": {"max_tokens": chance.choice((4, 16, 48))}}
        request = OmniRequest(text="Tell me about the sea.", request_id=label, sampling=limit)
        killer = asyncio.get_running_loop().call_later(
            chance.choice((0.0, 0.01, 0.1, 0.5, 2.0)),
            lambda: asyncio.ensure_future(voice.abort(label)),
        )
        finished = [e async for e in voice.stream(request) if isinstance(e, Finished)]
        killer.cancel()
        assert len(finished) == 1
        outcomes[finished[0].reply.finish_reason] += 1

    for start in range(0, 200, 8):
        await asyncio.gather(*(one(n) for n in range(start, start + 8)))
    assert outcomes["abort"] > 100
    assert await idle(voice) == EMPTY
    assert run_files() == before
    reply = await voice.generate(OmniRequest(text=QUESTION))
    assert reply.text == "The capital of France is Paris."
    print(outcomes)
