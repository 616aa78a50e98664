"""The pipelines that hand a KV cache on, with the real thinker: stages in processes of their own,
caches through shared memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import torch
from transformers import LlamaForCausalLM

from antiphon import AsyncOmni, ImageChunk, OmniRequest, Reply, TextDelta
from antiphon.errors import InvalidRequestError
from antiphon.models.imagine.sizes import DrawSizes
from antiphon.models.imagine.weights import draw_tensors
from antiphon.models.voice.entries import ChatEntry
from antiphon.models.voice.weights import thinker_checkpoint
from antiphon.pipeline.detokenize import Detokenizer, load_tokenizer
from antiphon.pipeline.entry import EntryRequest
from drawn import cache_of, drawn
from leftovers import run_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(400),
]

QUESTIONS = (
    "What is the capital of France?",  # ends by itself
    "Tell me about the ocean.",  # ends at the limit
    "Name three colours.",
)
SEEDED = {"temperature": 0.9, "seed": 7, "repetition_penalty": 1.2, "max_tokens": 24}


async def chat(omni: AsyncOmni, text: str, **options: Any) -> Reply:
    return await omni.generate(OmniRequest(text=text, **options))


def told(reply: Reply) -> tuple[str, str]:
    return reply.text, reply.finish_reason


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undivided() -> dict[str, tuple[str, str]]:
    """What the voice's thinker answers by itself, greedy and seeded."""
    async with AsyncOmni("voice", entries=("chat",), modalities=("text",)) as omni:
        answers = {q: told(await chat(omni, q, modalities=("text",))) for q in QUESTIONS}
        seeded = {"thinker": SEEDED}
        answers["seeded"] = told(
            await chat(omni, QUESTIONS[1], modalities=("text",), sampling=seeded)
        )
    return answers


def left_by(omni: AsyncOmni) -> list[Path]:
    """Files in shared memory of this run; others may run on the machine at the same time."""
    return [path for path in run_files() if omni._run in path.name]


# --- split ----------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def split(undivided: dict[str, tuple[str, str]]) -> AsyncIterator[AsyncOmni]:
    async with AsyncOmni("split") as omni:
        yield omni
    assert left_by(omni) == []


@pytest.mark.parametrize("question", QUESTIONS)
async def test_split_answers_as_the_undivided_thinker(
    split: AsyncOmni, undivided: dict[str, tuple[str, str]], question: str
) -> None:
    reply = await chat(split, question)
    assert told(reply) == undivided[question]
    assert set(reply.timings.stages) == {"prefill", "decode"}


async def test_split_answers_several_at_once_as_each_alone(
    split: AsyncOmni, undivided: dict[str, tuple[str, str]]
) -> None:
    questions = QUESTIONS * 3
    replies = await asyncio.gather(*(chat(split, question) for question in questions))
    assert [told(reply) for reply in replies] == [undivided[question] for question in questions]


async def test_split_samples_from_the_first_token_on(
    split: AsyncOmni, undivided: dict[str, tuple[str, str]]
) -> None:
    """Seed, penalties and limit are those of an undivided request."""
    assert told(await chat(split, QUESTIONS[1], sampling={"decode": SEEDED})) == undivided["seeded"]
    assert undivided["seeded"] != undivided[QUESTIONS[1]]


async def test_split_answers_again_from_its_prefix_caches(
    split: AsyncOmni, undivided: dict[str, tuple[str, str]]
) -> None:
    """Both engines know the prompt by now."""
    assert told(await chat(split, QUESTIONS[0])) == undivided[QUESTIONS[0]]


async def test_split_leaves_nothing_behind(split: AsyncOmni) -> None:
    assert split.deployment.connector == "shm"
    await chat(split, QUESTIONS[0])
    for name, stage in (await split.inspect()).items():
        held = (stage.requests, stage.gated, stage.worker_requests, stage.connector_entries)
        assert held == (0, 0, 0, 0), name
        assert stage.free_blocks == stage.total_blocks - 1, name


# --- imagine --------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def imagine(undivided: dict[str, tuple[str, str]]) -> AsyncIterator[AsyncOmni]:
    async with AsyncOmni("imagine") as omni:
        yield omni
    assert left_by(omni) == []


@pytest.fixture(scope="module")
def thinker() -> Iterator[LlamaForCausalLM]:
    """By transformers; the stages want the other cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield LlamaForCausalLM.from_pretrained(thinker_checkpoint(), dtype=torch.float32).eval()
    torch.set_num_threads(threads)


def conversation(thinker: LlamaForCausalLM, question: str) -> tuple[list[int], str]:
    """Prompt and greedy answer by transformers, as ids, and the answer's text."""
    checkpoint = thinker_checkpoint()
    (prompt,) = ChatEntry(checkpoint).prompts(EntryRequest(text=question))
    with torch.inference_mode():
        made = thinker.generate(torch.tensor([prompt]), max_new_tokens=96, do_sample=False)
    ids: list[int] = made[0].tolist()
    detokenizer = Detokenizer(load_tokenizer(checkpoint))
    return ids, detokenizer.feed(ids[len(prompt) :])


def expected(thinker: LlamaForCausalLM, ids: list[int], variant: int) -> npt.NDArray[np.float64]:
    """The picture, levels 0 to 255, of all tokens but the last, which is not in the cache."""
    sizes = DrawSizes()
    cache = cache_of(thinker, ids[:-1])
    return 255 * drawn(draw_tensors(sizes), sizes, cache, len(ids) - 1, variant)


@pytest.mark.parametrize("question", QUESTIONS)
async def test_pictures_are_those_of_the_reference(
    imagine: AsyncOmni,
    thinker: LlamaForCausalLM,
    undivided: dict[str, tuple[str, str]],
    question: str,
) -> None:
    """The text as ever, and companions that attend to question and answer: transformers' cache and
    numpy in double precision give the same pictures, but for rounding to whole levels.
    """
    reply = await chat(imagine, question, n=2)
    ids, text = conversation(thinker, question)
    assert told(reply) == undivided[question]
    assert reply.text == text
    assert [picture.shape for picture in reply.images] == [(128, 128, 3)] * 2
    for variant, picture in enumerate(reply.images):
        reference = expected(thinker, ids, variant)
        assert np.abs(picture - reference).max() < 1
        shorter = expected(thinker, ids[:-1], variant)  # a token less would have been seen
        assert np.abs(picture - shorter).mean() > 5


async def test_the_same_question_gives_the_same_pictures(imagine: AsyncOmni) -> None:
    """Bit for bit, however many companions there are; no two of them are alike."""
    once, again = [(await chat(imagine, QUESTIONS[0], n=3)).images for _ in range(2)]
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    (single,) = (await chat(imagine, QUESTIONS[0])).images
    assert np.array_equal(single, once[0])
    for number, picture in enumerate(once):
        for other in once[:number]:
            assert np.abs(picture.astype(float) - other).mean() > 10


async def test_another_question_gives_another_picture(imagine: AsyncOmni) -> None:
    replies = [await chat(imagine, question) for question in QUESTIONS]
    pictures = [reply.images[0].astype(float) for reply in replies]
    assert np.abs(pictures[0] - pictures[1]).mean() > 10
    assert np.abs(pictures[1] - pictures[2]).mean() > 10


async def test_text_comes_before_the_picture(imagine: AsyncOmni) -> None:
    """The answer is shown while it is written; the picture needs all of it."""
    events = [event async for event in imagine.stream(OmniRequest(text=QUESTIONS[0], n=2))]
    kinds = [type(event) for event in events[:-1]]
    first = kinds.index(ImageChunk)
    assert kinds[:first].count(TextDelta) > 1
    assert kinds[first:].count(ImageChunk) == 2


async def test_pictures_alone_and_text_alone(imagine: AsyncOmni) -> None:
    both = await chat(imagine, QUESTIONS[0])
    (picture,) = (await chat(imagine, QUESTIONS[0], modalities=("image",))).images
    assert np.array_equal(picture, both.images[0])
    before = (await imagine.inspect())["draw"].steps
    reply = await chat(imagine, QUESTIONS[0], modalities=("text",))
    assert (reply.text, reply.images) == (both.text, [])
    assert (await imagine.inspect())["draw"].steps == before


async def test_imagine_leaves_nothing_behind(imagine: AsyncOmni) -> None:
    await chat(imagine, QUESTIONS[0], n=2)
    for name, stage in (await imagine.inspect()).items():
        held = (stage.requests, stage.gated, stage.worker_requests, stage.connector_entries)
        assert held == (0, 0, 0, 0), name
    thinker = (await imagine.inspect())["thinker"]
    assert thinker.free_blocks == thinker.total_blocks - 1


async def test_a_conversation_cannot_be_held_where_its_cache_leaves(imagine: AsyncOmni) -> None:
    with pytest.raises(InvalidRequestError, match="hands its KV cache on"):
        async with imagine.session():
            pass


async def test_an_answer_in_text_has_no_companions(split: AsyncOmni) -> None:
    with pytest.raises(InvalidRequestError, match="n is 2"):
        await chat(split, QUESTIONS[0], n=2)
