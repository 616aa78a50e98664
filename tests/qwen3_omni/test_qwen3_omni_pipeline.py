"""The whole pipeline as a caller has it: by name, on a folder that the caller gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from antiphon import AudioChunk, Deployment, Finished, Omni, OmniRequest
from antiphon.errors import InvalidRequestError
from antiphon.pipeline.detokenize import Detokenizer, load_tokenizer
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.stage_deployment import StageDeployment
from engine_pool import EnginePool
from qwen3_omni_oracle import Oracle, Prompt, generate, tokenizer
from qwen3_omni_stages import TALKER_BLOCK_BYTES, THINKER_BLOCK_BYTES, windowed

SOUND = 1e-5  # most that samples may differ: waves are decoded in batches of other sizes
GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0}
TEXT_TOKENS, FRAMES = 20, 70


def deployment(folder: str, mode: str) -> Deployment:
    """Small, in this process, and without the text's own end: replies differ in nothing else."""
    sizes = {"max_model_len": 512, "max_num_batched_tokens": 512, "dtype": "float32"}
    plain = {"block_size": 32, "enforce_eager": True}
    return Deployment(
        pipeline="qwen3-omni",
        in_process=True,
        models={"*": folder},
        stages={
            "thinker": StageDeployment(
                kv_cache_bytes=64 * THINKER_BLOCK_BYTES, engine_args=plain, **sizes
            ),
            "talker": StageDeployment(
                kv_cache_bytes=64 * TALKER_BLOCK_BYTES, engine_args=plain, **sizes
            ),
            "code2wav": StageDeployment(
                max_model_len=2048, max_num_batched_tokens=2048, dtype="float32"
            ),
        },
        edges={name: EdgeDeployment(mode=mode) for name in ("speak", "codes")},  # type: ignore[arg-type]
    )


@pytest.fixture(scope="session")
def omnis(engines: EnginePool, checkpoint: str) -> Callable[[str], Omni]:
    """Pipelines by the mode of their edges; closed with the folder's other engines."""
    made: dict[str, Omni] = {}

    def omni(mode: str) -> Omni:
        if mode not in made:
            made[mode] = Omni("qwen3-omni", deployment=deployment(checkpoint, mode))
            engines.keep(made[mode].close)
        return made[mode]

    return omni


MODES = pytest.mark.parametrize("mode", ["stream", "full"])
QUESTIONS = ("hi", "what is it that you see?", "name three rivers, and a fourth one")


def request(text: str, **over: Any) -> OmniRequest:
    talker = {**GREEDY, "max_tokens": FRAMES}
    sampling: dict[str, dict[str, object]] = {"thinker": {"max_tokens": TEXT_TOKENS}}
    if over.get("modalities") != ("text",):
        sampling["talker"] = talker
    return OmniRequest(text=text, sampling=sampling, **over)


def answer(folder: str, text: str, speaker: str = "ethan") -> Oracle:
    """transformers': one more token of speech, of which it makes no frame."""
    prompt = tokenizer(folder).apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return generate(folder, Prompt(prompt), TEXT_TOKENS, FRAMES + 1, speaker)


def said(folder: str, oracle: Oracle) -> str:
    return Detokenizer(load_tokenizer(folder)).feed(oracle.text)


def near(heard: Any, folder: str, oracle: Oracle, mode: str) -> bool:
    expected = oracle.waveform if mode == "full" else windowed(folder, oracle.codes)
    found = torch.from_numpy(np.asarray(heard))
    assert found.shape == expected.shape
    return float((found - expected).abs().max()) < SOUND


@pytest.fixture(scope="session", autouse=True)
def oracles(checkpoint: str) -> None:
    """Answers of transformers take longer than any test may; they are kept."""
    for text in QUESTIONS:
        answer(checkpoint, text)


@MODES
def test_text_and_speech_are_those_of_transformers(
    omnis: Callable[[str], Omni], checkpoint: str, mode: str
) -> None:
    for text in QUESTIONS:
        oracle = answer(checkpoint, text)
        reply = omnis(mode).generate(request(text))
        assert reply.text == said(checkpoint, oracle)
        assert reply.sample_rate == 24_000
        assert near(reply.audio, checkpoint, oracle, mode)


def test_replies_that_overlap_do_not_mix(omnis: Callable[[str], Omni], checkpoint: str) -> None:
    streams: dict[str, Iterator[Any]] = {
        text: omnis("stream").stream(request(text)) for text in QUESTIONS
    }
    chunks: dict[str, list[Any]] = {text: [] for text in QUESTIONS}
    replies = {}
    while streams:
        for text, events in list(streams.items()):
            match next(events):
                case AudioChunk(samples):
                    chunks[text].append(samples)
                case Finished(reply):
                    replies[text] = reply
                    events.close()  # type: ignore[attr-defined]
                    del streams[text]
    for text in QUESTIONS:
        oracle = answer(checkpoint, text)
        assert replies[text].text == said(checkpoint, oracle)
        assert len(chunks[text]) > 2
        assert near(np.concatenate(chunks[text]), checkpoint, oracle, "stream")


def test_a_voice_is_chosen_by_name(omnis: Callable[[str], Omni], checkpoint: str) -> None:
    oracle = answer(checkpoint, QUESTIONS[0], "chelsie")
    reply = omnis("stream").generate(request(QUESTIONS[0], params={"speaker": "Chelsie"}))
    assert near(reply.audio, checkpoint, oracle, "stream")
    with pytest.raises(InvalidRequestError, match="known: chelsie, ethan"):
        omnis("stream").generate(request(QUESTIONS[0], params={"speaker": "nobody"}))


def test_text_alone_starts_no_talker(omnis: Callable[[str], Omni], checkpoint: str) -> None:
    reply = omnis("stream").generate(request(QUESTIONS[0], modalities=("text",)))
    assert reply.text == said(checkpoint, answer(checkpoint, QUESTIONS[0]))
    assert reply.audio is None
    assert set(reply.timings.stages) == {"thinker"}


def test_a_conversation_goes_on(omnis: Callable[[str], Omni], checkpoint: str) -> None:
    """The talker hears what the user said in all turns, and none of the earlier answers."""
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "well"},
        {"role": "user", "content": "and you?"},
    ]
    prompt = tokenizer(checkpoint).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    oracle = generate(checkpoint, Prompt(prompt), TEXT_TOKENS, FRAMES + 1, "ethan")
    reply = omnis("stream").generate(request("", messages=messages))
    assert reply.text == said(checkpoint, oracle)
    assert near(reply.audio, checkpoint, oracle, "stream")


def test_defaults_speak_by_lot(omnis: Callable[[str], Omni], checkpoint: str) -> None:
    """transformers samples the talker too unless it is told otherwise; a seed repeats it."""
    talker: dict[str, object] = {"max_tokens": 20, "seed": 3}
    text: dict[str, object] = {"max_tokens": TEXT_TOKENS}
    given = OmniRequest(text=QUESTIONS[0], sampling={"thinker": text, "talker": talker})
    first, again = (omnis("stream").generate(given) for _ in range(2))
    assert first.text == said(checkpoint, answer(checkpoint, QUESTIONS[0]))
    assert np.array_equal(first.audio, again.audio)  # type: ignore[arg-type]
