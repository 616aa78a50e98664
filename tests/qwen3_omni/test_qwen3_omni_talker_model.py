"""The talker inside vLLM: tokens and all codes are those of transformers' `generate`.

Frames of a request that ends at `max_tokens` are one more than transformers makes, which computes
none for the last token.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from antiphon.models.qwen3_omni.configs import code2wav_config, talker_config
from antiphon.models.qwen3_omni.tiny import write_tiny
from antiphon.payload.adapters import Input
from engine_pool import EnginePool
from qwen3_omni_alone import MADE, speak, talker_input, talker_spec
from qwen3_omni_oracle import Oracle, Prompt, Tone, chat, generate, late_code, reference
from tiny import BLOCK_BYTES, Driven

TOKENS = 40
# 9 blocks of 32 can be given out, and prompts come in pieces of 24.
CRAMPED: dict[str, Any] = {
    "max_model_len": 160,
    "max_num_batched_tokens": 24,
    "kv_cache_memory_bytes": 10 * BLOCK_BYTES,
}


@pytest.fixture(scope="module")
def stage(engines: EnginePool, checkpoint: str) -> Driven:
    driven: Driven = engines.stage(talker_spec("talker", checkpoint))
    return driven


@pytest.fixture(scope="module")
def cramped(engines: EnginePool, checkpoint: str) -> Driven:
    driven: Driven = engines.stage(talker_spec("cramped-talker", checkpoint, **CRAMPED))
    return driven


@pytest.fixture(scope="module")
def oracle(checkpoint: str) -> Oracle:
    return generate(checkpoint, chat(checkpoint, "what is it?"), 12, TOKENS)


def prompts(folder: str) -> list[Prompt]:
    return [
        chat(folder, "a"),
        chat(folder, "hello there"),
        chat(folder, "what is it? " * 5),
        chat(folder, "what is ", Tone(), "?"),
        chat(folder, Tone(0.7, 300.0)),
        chat(folder, "rivers and the sea, please"),
    ]


def spoken(stage: Driven, made: Input, tokens: int = TOKENS) -> tuple[list[int], list[list[int]]]:
    """Tokens and frames of a request alone."""
    stage.clear()
    speak(stage, "r", made, tokens)
    stage.run()
    stage.discard()
    stage.assert_empty()
    return stage.tokens("r"), MADE["r"].frames


def assert_like(oracle: Oracle, tokens: list[int], frames: list[list[int]]) -> None:
    assert tokens == oracle.talker
    assert frames[: len(oracle.codes)] == oracle.codes.tolist()
    assert [frame[0] for frame in frames] == tokens


def test_tokens_and_codes_are_those_of_transformers(
    stage: Driven, checkpoint: str, oracle: Oracle
) -> None:
    tokens, frames = spoken(stage, talker_input(checkpoint, oracle))
    assert_like(oracle, tokens, frames)
    assert len(frames) == TOKENS
    assert len(set(map(tuple, frames))) > TOKENS / 2  # they are worth comparing


@pytest.mark.parametrize("name", ["stage", "cramped"])
def test_a_batch_is_what_each_is_alone(
    request: pytest.FixtureRequest, checkpoint: str, name: str
) -> None:
    """With prompts of text and of sound; cramped, in pieces and with preemption."""
    stage: Driven = request.getfixturevalue(name)
    stage.clear()
    oracles = [generate(checkpoint, p, 12, TOKENS) for p in prompts(checkpoint)]
    for index, own in enumerate(oracles):
        speak(stage, f"r{index}", talker_input(checkpoint, own), TOKENS)
    preempted = set()
    while stage.host.has_work:
        stage.host.step()
        live = stage.scheduler.requests.items()
        preempted |= {uid for uid, request in live if request.num_preemptions}
    stage.discard()
    stage.assert_empty()
    assert bool(preempted) == (name == "cramped")
    for index, own in enumerate(oracles):
        assert_like(own, stage.tokens(f"r{index}"), MADE[f"r{index}"].frames)


@pytest.mark.slow
def test_compiled_it_is_the_same(engines: EnginePool, checkpoint: str, oracle: Oracle) -> None:
    """torch.compile takes three rows of positions of any length."""
    stage = engines.stage(talker_spec("compiled-talker", checkpoint, enforce_eager=False))
    for own in (oracle, generate(checkpoint, chat(checkpoint, "a"), 12, TOKENS)):
        assert_like(own, *spoken(stage, talker_input(checkpoint, own)))


def test_a_natural_end(engines: EnginePool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The end token ends the request; its frame comes too, and is none of transformers'."""
    folder = tmp_path_factory.mktemp("ends")
    write_tiny(folder)
    prompt = chat(str(folder), "a")
    end = late_code(str(folder), prompt, 12, TOKENS)
    folder = tmp_path_factory.mktemp("ends-early")
    write_tiny(folder, codec_eos=end)
    oracle = generate(str(folder), prompt, 12, TOKENS)
    stage = engines.stage(talker_spec("ending-talker", str(folder)))
    tokens, frames = spoken(stage, talker_input(str(folder), oracle))
    assert_like(oracle, tokens, frames)
    assert tokens[-1] == end
    assert len(tokens) < TOKENS
    assert len(oracle.codes) == len(tokens) - 1
    assert stage.endings("r")[0].finish == "stop"


def changed(made: Input, oracle: Oracle) -> dict[str, Input]:
    rows, text, marks = made.prompt_rows, made.rows, made.prompt_marks
    assert rows is not None
    assert text is not None
    assert marks is not None
    no_codec, hidden = marks.clone(), marks.clone()
    no_codec[:, 1] = -1
    hidden[:, 0] = 1
    return {
        "text shifted by one": replace(made, rows=text[1:]),
        "no text": replace(made, rows=made.rows[:0] if made.rows is not None else None),
        "prompt shifted": replace(made, prompt_rows=rows.roll(1, 0)),
        "no codec tokens": replace(made, prompt_marks=no_codec),
        "the other projection": replace(made, prompt_marks=hidden),
        "another padding": replace(made, padding=text[0]),
    }


@pytest.mark.parametrize(
    "change",
    [
        "text shifted by one",
        "no text",
        "prompt shifted",
        "no codec tokens",
        "the other projection",
        "another padding",
    ],
)
def test_a_wrong_input_shows(stage: Driven, checkpoint: str, oracle: Oracle, change: str) -> None:
    """Negative controls."""
    made = changed(talker_input(checkpoint, oracle), oracle)[change]
    _, frames = spoken(stage, made)
    assert frames[: len(oracle.codes)] != oracle.codes.tolist()


def test_reserved_ids_are_never_sampled(stage: Driven, checkpoint: str, oracle: Oracle) -> None:
    """Drawn by lot, where most of the chances would be theirs."""
    stage.clear()
    made = talker_input(checkpoint, oracle)
    speak(stage, "r", made, TOKENS, temperature=2.0, seed=3)
    stage.run()
    stage.discard()
    stage.assert_empty()
    config = reference(checkpoint).config.talker_config
    allowed = {*range(config.text_config.vocab_size - 1024), config.codec_eos_token_id}
    drawn = stage.tokens("r")
    assert drawn, stage.endings("r")
    assert set(drawn) <= allowed
    assert len(set(drawn)) > len(drawn) / 3


@pytest.mark.parametrize(
    "missing",
    [
        "talker.model.layers.1.mlp.experts.2.up_proj.weight",
        "talker.model.layers.0.self_attn.v_proj.weight",
        "talker.codec_head.weight",
        "talker.hidden_projection.linear_fc1.bias",
        "talker.code_predictor.lm_head.1.weight",
    ],
)
def test_an_incomplete_checkpoint_is_refused(checkpoint: str, tmp_path: Path, missing: str) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    del tensors[missing]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Exception, match="does not hold all of"):
        Driven(talker_spec("incomplete", str(folder)))


def test_a_stages_configuration_stays_what_it_is(checkpoint: str) -> None:
    config = reference(checkpoint).config
    before = config.to_dict()
    for made in (talker_config, code2wav_config):
        own = made(config)
        assert made(own) is own
        assert own.architectures != config.architectures
        assert str(own.dtype) == str(config.dtype)
    assert config.to_dict() == before
    assert talker_config(config).eos_token_id == config.talker_config.codec_eos_token_id
