"""Speech into the voice pipeline: what is heard, and what is answered to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from hibari import Hibari

from antiphon import (
    AsyncOmni,
    AudioClip,
    Finished,
    OmniRequest,
    TextDelta,
    TranscriptDelta,
)
from antiphon.errors import EmptyInputError
from held import EMPTY, idle

# The first test waits for the stages, on a new machine also for their models.
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(400)]

SENTENCES = Path(__file__).parents[1] / "voice" / "sentences.txt"
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
SILENCE = AudioClip(bytes(32_000), 16_000)


@pytest.fixture(scope="module")
def speaker() -> Hibari:
    return Hibari()


def spoken(speaker: Hibari, text: str) -> AudioClip:
    return AudioClip.from_array(np.asarray(speaker(text, seed=1), np.float32), 24_000)


async def test_a_question_that_is_spoken_is_answered_in_text_and_speech(
    voice: AsyncOmni, speaker: Hibari
) -> None:
    reply = await voice.generate(OmniRequest(audio=[spoken(speaker, QUESTION)]))
    assert reply.text == ANSWER
    assert reply.audio is not None
    assert reply.transcript is None  # nobody has asked
    assert await idle(voice) == EMPTY


async def test_what_was_heard_comes_before_its_answer(voice: AsyncOmni, speaker: Hibari) -> None:
    request = OmniRequest(audio=[spoken(speaker, QUESTION)], modalities=("transcript", "text"))
    events = [event async for event in voice.stream(request)]
    heard = [event.text for event in events if isinstance(event, TranscriptDelta)]
    assert "".join(heard) == QUESTION
    assert [type(event) for event in events[: len(heard)]] == [TranscriptDelta] * len(heard)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == ANSWER
    assert isinstance(events[-1], Finished)
    assert events[-1].reply.transcript == QUESTION


async def test_speech_is_written_down(voice: AsyncOmni, speaker: Hibari) -> None:
    clip = spoken(speaker, QUESTION)
    before = (await voice.inspect())["thinker"].steps
    reply = await voice.generate(OmniRequest(entry="transcribe", audio=[clip]))
    assert (reply.text, reply.transcript, reply.audio) == (QUESTION, QUESTION, None)
    assert (await voice.inspect())["thinker"].steps == before


async def test_silence_is_an_error_of_the_caller_and_an_empty_transcript(voice: AsyncOmni) -> None:
    with pytest.raises(EmptyInputError, match="nothing was heard"):
        await voice.generate(OmniRequest(audio=[SILENCE]))
    assert (await voice.generate(OmniRequest(entry="transcribe", audio=[SILENCE]))).text == ""
    with_text = OmniRequest(text=QUESTION, audio=[SILENCE], modalities=("text",))
    assert (await voice.generate(with_text)).text == ANSWER
    assert await idle(voice) == EMPTY


async def test_an_abort_while_it_is_heard(voice: AsyncOmni, speaker: Hibari) -> None:
    """C66, C113: with a window in the encoder and others waiting for it."""
    request = OmniRequest(
        audio=[spoken(speaker, QUESTION)] * 8,
        modalities=("transcript", "text"),
        request_id="heard",
    )
    finished = []
    async for event in voice.stream(request):
        if isinstance(event, TranscriptDelta):
            asyncio.get_running_loop().call_soon(
                lambda: asyncio.ensure_future(voice.abort("heard"))
            )
        elif isinstance(event, Finished):
            finished.append(event.reply.finish_reason)
    assert finished == ["abort"]
    assert await idle(voice) == EMPTY


@pytest.mark.slow
async def test_minutes_of_speech_are_written_down(voice: AsyncOmni, speaker: Hibari) -> None:
    """In windows of 30 s, cut where it is quiet."""
    import jiwer

    from judge import plain

    text = " ".join(line for line in SENTENCES.read_text().splitlines() if line.strip())
    clip = spoken(speaker, text)
    reply = await voice.generate(OmniRequest(entry="transcribe", audio=[clip]))
    wrong = jiwer.wer(plain(text), plain(reply.text))
    print(f"{clip.seconds:.0f} s, word error rate {wrong:.1%}, {reply.timings.total_s:.1f} s")
    assert clip.seconds > 90
    assert wrong <= 0.04
    assert reply.timings.total_s < clip.seconds
