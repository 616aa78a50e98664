"""Tokens and sound of both stages against transformers: fp32, greedy, exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from codec_lm_stages import FULL, STREAM, Speech, codec_spec, lm_spec, windowed
from codec_lm_tiny import SPEECH_END, Oracle, is_code, prompts
from engine_pool import EnginePool
from tiny import Driven

PROMPTS = prompts(8)
BACKBONES = ("llama", "qwen2")
BATCHED = 1e-5  # windows of equal size are decoded together, in other kernels


@pytest.mark.parametrize("backbone", BACKBONES)
def test_single_requests_are_transformers(
    roomy: dict[str, Driven], codec: Driven, oracles: dict[str, Oracle], backbone: str
) -> None:
    """Each request alone, twice: the second finds its prompt in the prefix cache."""
    oracle = oracles[backbone]
    for prompt in PROMPTS[:3]:
        expected = oracle.tokens(prompt, 48)
        for again in (False, True):
            speech = Speech(roomy[backbone], codec)
            speech.speak("a", prompt)
            speech.run()
            assert speech.producer.tokens("a") == expected
            assert torch.equal(speech.heard("a"), oracle.sound(expected))
            assert speech.producer.cached_tokens("a") == again * ((len(prompt) - 1) // 32 * 32)
            speech.assert_empty()


@pytest.mark.parametrize("memory", ["roomy", "cramped"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_batches_are_transformers(
    backbone: str,
    memory: str,
    codec: Driven,
    oracles: dict[str, Oracle],
    request: pytest.FixtureRequest,
) -> None:
    """Mixed lengths; with little room prompts come in chunks and requests lose their blocks."""
    oracle = oracles[backbone]
    speech = Speech(request.getfixturevalue(memory)[backbone], codec)
    chosen = PROMPTS[1:6]
    for index, prompt in enumerate(chosen):
        speech.speak(f"r{index}", prompt)
    speech.run()
    for index, prompt in enumerate(chosen):
        expected = oracle.tokens(prompt, 48)
        assert speech.producer.tokens(f"r{index}") == expected
        assert torch.equal(speech.heard(f"r{index}"), oracle.sound(expected))
    assert bool(speech.preempted) == (memory == "cramped")
    speech.assert_empty()


@pytest.mark.parametrize("memory", ["roomy", "cramped"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_streams_are_transformers_window_by_window(
    backbone: str,
    memory: str,
    codec: Driven,
    oracles: dict[str, Oracle],
    request: pytest.FixtureRequest,
) -> None:
    oracle = oracles[backbone]
    speech = Speech(request.getfixturevalue(memory)[backbone], codec)
    for index, prompt in enumerate(PROMPTS[1:5]):
        speech.speak(f"r{index}", prompt, STREAM)
    speech.run()
    for index, prompt in enumerate(PROMPTS[1:5]):
        expected = oracle.tokens(prompt, 48)
        assert speech.producer.tokens(f"r{index}") == expected
        torch.testing.assert_close(
            speech.heard(f"r{index}"), windowed(oracle, expected), atol=BATCHED, rtol=0
        )
    speech.assert_empty()


def test_one_stream_is_exact_window_by_window(
    roomy: dict[str, Driven], codec: Driven, oracles: dict[str, Oracle]
) -> None:
    """And only nearly what the whole speech would be: the codec looks at all it is given."""
    oracle = oracles["llama"]
    speech = Speech(roomy["llama"], codec)
    speech.speak("a", PROMPTS[4], STREAM)
    speech.run()
    tokens = oracle.tokens(PROMPTS[4], 48)
    heard = speech.heard("a")
    assert torch.equal(heard, windowed(oracle, tokens))
    assert heard.shape == oracle.sound(tokens).shape
    assert not torch.allclose(heard, oracle.sound(tokens), atol=1e-3)


def test_a_speech_of_one_chunk_is_exact(
    roomy: dict[str, Driven], codec: Driven, oracles: dict[str, Oracle]
) -> None:
    speech = Speech(roomy["llama"], codec)
    speech.speak("a", PROMPTS[0], STREAM, max_tokens=4)
    speech.run()
    tokens = oracles["llama"].tokens(PROMPTS[0], 4)
    assert len(tokens) == 4
    assert torch.equal(speech.heard("a"), oracles["llama"].sound(tokens))


@pytest.mark.parametrize("edge", [FULL, STREAM])
def test_a_speech_that_ends_at_once_is_silence(
    roomy: dict[str, Driven], codec: Driven, oracles: dict[str, Oracle], edge: str
) -> None:
    """The limit takes the only token that is not the end away."""
    speech = Speech(roomy["llama"], codec)
    silent = next(p for p in prompts(400, seed=9) if oracles["llama"].tokens(p, 1) == [SPEECH_END])
    speech.speak("a", silent, edge)
    speech.run()
    assert speech.producer.tokens("a") == [SPEECH_END]
    assert speech.heard("a").numel() == 0
    assert [out.finish for out in speech.consumer.endings("a'")] == ["stop"]
    speech.assert_empty()


def test_the_comparison_sees_a_difference(
    roomy: dict[str, Driven], codec: Driven, oracles: dict[str, Oracle]
) -> None:
    """Negative control: one token of the prompt, or one code, changes what is heard."""
    oracle = oracles["llama"]
    speech = Speech(roomy["llama"], codec)
    changed = [PROMPTS[4][0], PROMPTS[4][1] ^ 1, *PROMPTS[4][2:]]
    speech.speak("a", changed)
    speech.run()
    expected = oracle.tokens(PROMPTS[4], 48)
    assert speech.producer.tokens("a") != expected
    other = [expected[0] ^ 1, *expected[1:]]
    assert not torch.allclose(oracle.sound(other), oracle.sound(expected), atol=1e-3)


def test_sampled_ids_are_codes_or_the_end(roomy: dict[str, Driven], codec: Driven) -> None:
    """By lot too, where the others would have had nearly all of it."""
    speech = Speech(roomy["qwen2"], codec)
    for index, prompt in enumerate(PROMPTS[:4]):
        sampling = {"max_tokens": 30, "temperature": 2.0, "stop_token_ids": [SPEECH_END], "seed": 3}
        speech.producer.submit(f"r{index}", prompt, edges=(FULL,), sampling=sampling)
        speech.consumer.submit(f"r{index}'", waits_for=FULL)
    speech.run()
    ids = [token for index in range(4) for token in speech.producer.tokens(f"r{index}")]
    assert len(set(ids)) > 20
    assert all(is_code(token) or token == SPEECH_END for token in ids)
    speech.assert_empty()


def test_neucodec_is_transformers(
    engines: EnginePool, checkpoints: dict[str, str], roomy: dict[str, Driven]
) -> None:
    """Another codec behind the same edge."""
    oracle = Oracle.of(checkpoints["llama"], checkpoints["neucodec"])
    codec = engines.stage(codec_spec("neucodec", checkpoints["neucodec"]))
    speech = Speech(roomy["llama"], codec)
    speech.speak("a", PROMPTS[4])
    speech.run()
    tokens = oracle.tokens(PROMPTS[4], 48)
    expected = oracle.sound(tokens)
    assert expected.numel() == 6 * (len(tokens) - (tokens[-1] == SPEECH_END))  # 24 kHz for 16
    assert torch.equal(speech.heard("a"), expected)


@pytest.fixture(scope="module")
def coarse(engines: EnginePool, checkpoints: dict[str, str]) -> dict[str, Any]:
    """Both language models and XCodec2 in bfloat16."""
    specs = [lm_spec(f"bf16-{b}", checkpoints[b], dtype="bfloat16") for b in BACKBONES]
    specs.append(codec_spec("bf16-xcodec2", checkpoints["xcodec2"], dtype="bfloat16"))
    return {spec.name.removeprefix("bf16-"): engines.stage(spec) for spec in specs}


@pytest.mark.parametrize("backbone", BACKBONES)
def test_bfloat16_runs(
    coarse: dict[str, Any],
    oracles: dict[str, Oracle],
    backbone: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Finite; where it leaves float32 is told and not judged."""
    speech = Speech(coarse[backbone], coarse["xcodec2"])
    speech.speak("a", PROMPTS[4])
    speech.run()
    tokens, expected = speech.producer.tokens("a"), oracles[backbone].tokens(PROMPTS[4], 48)
    same = [a == b for a, b in zip(tokens, expected, strict=False)]
    first = same.index(False) if False in same else len(same)
    heard, sound = speech.heard("a"), oracles[backbone].sound(tokens)
    assert torch.isfinite(heard).all()
    assert heard.shape == sound.shape
    with capsys.disabled():
        worst = float((heard - sound).abs().max())
        print(f" [{backbone}: first other token {first} of {len(same)}; sound within {worst:.3g}]")
