"""The two ends of the edge, and what a bad request does to its neighbours."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError, TopologyError
from antiphon.models.codec_lm.adapters import CODES, CodesInput, CodesOutput
from antiphon.payload.adapters import StageContext
from antiphon.payload.types import Payload, per_token
from codec_lm_stages import CODEC_LENGTH, FULL, OPTIONS, STREAM, Speech, codec_spec
from codec_lm_tiny import FIRST_CODE, NUM_CODES, SPEECH_END, Oracle, codec_model, is_code, prompts
from engine_pool import EnginePool
from tiny import MAX_LEN, Driven

PROMPTS = prompts(8)


@pytest.fixture(scope="module")
def small(engines: EnginePool, tmp_path_factory: pytest.TempPathFactory) -> Driven:
    """A codec of 192 codes."""
    folder = codec_model(tmp_path_factory.mktemp("small"), quantization_levels=[4, 4, 4, 3])
    made: Driven = engines.stage(codec_spec("small", folder))
    return made


def output(folder: str, *, stream: bool, **options: Any) -> CodesOutput:
    return CodesOutput(StageContext("lm", "codes", folder, {**OPTIONS, **options}, stream))


def payload(codes: list[int], dtype: torch.dtype = torch.int32, **meta: Any) -> Payload:
    return Payload({CODES: per_token(torch.tensor(codes, dtype=dtype))}, meta)


def test_a_full_edge_collects_one_payload(checkpoints: dict[str, str]) -> None:
    """Ids that are no codes are left out, wherever they come."""
    adapter = output(checkpoints["llama"], stream=False).open("a", {})
    steps = [[FIRST_CODE, FIRST_CODE + 5], [3, SPEECH_END + 1], [FIRST_CODE + NUM_CODES - 1]]
    assert not any(adapter.on_tokens(step) for step in [*steps, [FIRST_CODE + NUM_CODES]])
    (made,) = adapter.on_end()
    assert made.fields[CODES].tensor.tolist() == [0, 5, NUM_CODES - 1]


def test_nothing_spoken_is_no_payload(checkpoints: dict[str, str]) -> None:
    for stream in (False, True):
        adapter = output(checkpoints["llama"], stream=stream).open("a", {})
        assert adapter.on_tokens([SPEECH_END]) == []
        assert adapter.on_end() == []


def test_a_stream_is_cut_into_windows(checkpoints: dict[str, str]) -> None:
    adapter = output(checkpoints["llama"], stream=True).open("a", {})
    made = [p for code in range(20) for p in adapter.on_tokens([FIRST_CODE + code])]
    made += adapter.on_end()
    assert [p.fields[CODES].tensor.tolist() for p in made] == [
        list(range(0, 7)),
        list(range(0, 15)),
        list(range(6, 20)),
    ]
    assert [(p.meta["left"], p.meta["right"]) for p in made] == [(0, 3), (4, 3), (6, 0)]


def test_a_framing_that_makes_no_sense(checkpoints: dict[str, str]) -> None:
    with pytest.raises(TopologyError, match="edge codes: initial_frames is 0"):
        output(checkpoints["llama"], stream=True, initial_frames=0)


def test_adapters_are_quiet(checkpoints: dict[str, str]) -> None:
    """No tensor of a step is kept for them."""
    needs = CodesOutput.needs
    assert needs.requires_token_updates
    assert not needs.include_hidden
    assert not needs.side_outputs


def test_codes_become_the_codecs_prompt(checkpoints: dict[str, str]) -> None:
    adapter = CodesInput(StageContext("codec", "codes", checkpoints["xcodec2"], {}))
    made = adapter.on_payload(payload([4, 0, 255], first=9, left=1, right=1), last=True)
    assert made.plan == PromptPlan((4, 0, 255), extra={"first": 9, "left": 1, "right": 1})
    assert adapter.on_end().plan is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (payload([0, 256]), "from 0 to 256 came, and the codec has those from 0 to 255"),
        (payload([-1]), "from -1"),
        (payload([]), "no code"),
        (payload([1], torch.int64), "no vector 'codes' of int32"),
        (Payload({}), "no vector 'codes'"),
        (payload([1, 2], left=3, first=3), "cannot hold"),
        (payload([1, 2], left="1"), "not a count"),
    ],
)
def test_payloads_that_are_refused(
    checkpoints: dict[str, str], wrong: Payload, message: str
) -> None:
    adapter = CodesInput(StageContext("codec", "codes", checkpoints["xcodec2"], {}))
    with pytest.raises(AdapterError, match=message):
        adapter.on_payload(wrong, last=True)


def test_a_prompt_that_is_too_long_fails_one_request(
    roomy: dict[str, Driven], codec: Driven, oracles: dict[str, Oracle]
) -> None:
    """At the language model; its neighbour is heard."""
    speech = Speech(roomy["llama"], codec)
    speech.speak("long", PROMPTS[1] * (MAX_LEN // len(PROMPTS[1]) + 1))
    speech.speak("short", PROMPTS[1])
    speech.run()
    (end,) = speech.producer.endings("long")
    assert end.error is not None
    assert end.error.code == "input_too_long"
    expected = oracles["llama"].tokens(PROMPTS[1], 48)
    assert torch.equal(speech.heard("short"), oracles["llama"].sound(expected))
    codec.abort("long'")  # as the orchestrator does it
    speech.assert_empty()


def test_too_many_codes_fail_one_request(
    roomy: dict[str, Driven], codec: Driven, oracles: dict[str, Oracle]
) -> None:
    """Longer than the codec's length on a full edge; its neighbour is heard."""
    oracle = oracles["llama"]
    long = next(p for p in PROMPTS if len(oracle.tokens(p, 80)) == 80)
    speech = Speech(roomy["llama"], codec)
    speech.speak("long", long, max_tokens=CODEC_LENGTH + 16)
    speech.speak("short", PROMPTS[1])
    speech.run()
    assert speech.errors("long") == ["input_too_long"]
    expected = oracle.tokens(PROMPTS[1], 48)
    assert torch.equal(speech.heard("short"), oracle.sound(expected))
    speech.assert_empty()


@pytest.mark.parametrize("edge", [FULL, STREAM])
def test_codes_that_a_codec_lacks_fail_one_request(
    small: Driven, roomy: dict[str, Driven], oracles: dict[str, Oracle], edge: str
) -> None:
    """Under a language model of 256 codes, who stays below 192 is served."""
    oracle = oracles["llama"]

    def fits(prompt: list[int]) -> bool:
        made = [t for t in oracle.tokens(prompt, 6) if is_code(t)]
        return bool(made) and max(made) < FIRST_CODE + 192

    candidates = prompts(60, seed=11)
    good = next(p for p in candidates if fits(p))
    bad = next(p for p in candidates if not fits(p))
    speech = Speech(roomy["llama"], small)
    speech.speak("good", good, edge, max_tokens=6)
    speech.speak("bad", bad, edge, max_tokens=6)
    speech.run()
    assert speech.errors("bad") == ["adapter"]
    assert speech.errors("good") == []
    assert speech.heard("good").numel() > 0
    speech.assert_empty()
