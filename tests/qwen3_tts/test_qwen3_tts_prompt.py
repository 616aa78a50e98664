"""Prompts as the official code makes them, and requests that cannot be served; without engines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from antiphon.errors import (
    AntiphonError,
    EmptyInputError,
    InvalidRequestError,
    ModelUnavailableError,
)
from antiphon.models.qwen3_tts.configs import Qwen3TTSConfig, talker_config
from antiphon.models.qwen3_tts.entries import SpeechEntry
from antiphon.models.qwen3_tts.prompt import (
    SpokenPrompt,
    Voice,
    language_of,
    speaker_of,
    spoken_prompt,
)
from antiphon.models.qwen3_tts.prompt_input import PromptInput
from antiphon.models.qwen3_tts.settings import TtsSettings, codec_facts, talker_facts
from antiphon.payload.adapters import StageContext
from antiphon.payload.types import Payload
from antiphon.pipeline.entry import EntryRequest, Message
from qwen3_tts_stages import CHECKPOINT, about, case, params_of, references

SETTINGS = TtsSettings.read(CHECKPOINT)
Copy = Callable[..., str]


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return load_file(Path(CHECKPOINT) / "model.safetensors")


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy of the checkpoint with other settings."""

    def make(**over: Any) -> str:
        folder = tmp_path / "checkpoint"
        shutil.copytree(CHECKPOINT, folder)
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **over}))
        return str(folder)

    return make


def text(weights: dict[str, torch.Tensor], ids: list[int]) -> torch.Tensor:
    """Text ids in the talker's space, [n, hidden]."""
    rows = weights["talker.model.text_embedding.weight"][ids]
    for layer in ("linear_fc1", "linear_fc2"):
        name = f"talker.text_projection.{layer}"
        rows = F.linear(rows, weights[f"{name}.weight"], weights[f"{name}.bias"])
        rows = F.silu(rows) if layer == "linear_fc1" else rows
    return rows


def embedded(weights: dict[str, torch.Tensor], prompt: SpokenPrompt) -> torch.Tensor:
    rows = text(weights, [row[0] for row in prompt.rows])
    for at, (_, codec) in enumerate(prompt.rows):
        if codec >= 0:
            rows[at] += weights["talker.model.codec_embedding.weight"][codec]
    return rows


def prompt_of(name: str) -> SpokenPrompt:
    given = case(name)
    speaker = speaker_of(SETTINGS, params_of(name))
    voice = Voice(
        speaker=None if speaker is None else SETTINGS.talker_config.spk_id[speaker],
        language=language_of(SETTINGS, params_of(name), speaker),
        instruct=given.get("instruct_ids", ()),
        streaming=given["streaming"],
    )
    return spoken_prompt(SETTINGS, given["ids"], voice)


@pytest.mark.parametrize("name", about()["cases"])
def test_prompts_are_the_official_ones(name: str, weights: dict[str, torch.Tensor]) -> None:
    prompt = prompt_of(name)
    torch.testing.assert_close(
        embedded(weights, prompt), references()[f"{name}.prompt"], rtol=0, atol=1e-5
    )
    # Past its end the official code pads, as rows do with `padding`.
    trailing = references()[f"{name}.trailing"]
    ids = [*prompt.trailing, *[SETTINGS.tts_pad_token_id] * (len(trailing) - len(prompt.trailing))]
    torch.testing.assert_close(text(weights, ids), trailing, rtol=0, atol=1e-5)


def test_another_prompt_is_seen(weights: dict[str, torch.Tensor]) -> None:
    """Negative control."""
    made = embedded(weights, prompt_of("sentence-english-whole"))
    other = references()["sentence-auto-whole.prompt"]
    assert made.shape != other.shape
    dialect = references()["sentence-dialect-whole.prompt"]
    assert (made - dialect).abs().max() > 0.1


def test_what_the_stage_is_given() -> None:
    name = "sentence-english-streaming"
    adapter = PromptInput(StageContext("talker", "prompt", CHECKPOINT, {}))
    ids = case(name)["ids"]
    made = adapter.open("r", params_of(name)).on_payload(
        Payload({}, token_ids=tuple(ids)), last=True
    )
    prompt = prompt_of(name)
    assert made.plan is not None
    assert made.plan.rows_local
    assert set(made.plan.token_ids) == {SETTINGS.talker_config.codec_pad_id}
    assert made.prompt_rows is not None
    assert made.prompt_rows.tolist() == [list(row) for row in prompt.rows]
    assert made.rows is not None
    assert made.rows.tolist() == [[i] for i in prompt.trailing]
    assert made.padding is not None
    assert made.padding.tolist() == [SETTINGS.tts_pad_token_id]


def test_an_instruction_is_put_first() -> None:
    """In the official template, by the checkpoint's tokenizer."""
    adapter = PromptInput(StageContext("talker", "prompt", CHECKPOINT, {}))
    payload = Payload({}, token_ids=tuple(case("short-english-whole")["ids"]))
    plain = adapter.open("r", {}).on_payload(payload, last=True).prompt_rows
    told = adapter.open("r", {"instruct": "hi"}).on_payload(payload, last=True).prompt_rows
    assert plain is not None
    assert told is not None
    added = told[: len(told) - len(plain)]
    names = ["<|im_start|>", "user", "\u010a", "h", "i", "<|im_end|>", "\u010a"]
    ids = [adapter._tokenizer.token_to_id(name) for name in names]
    assert added.tolist() == [[i, -1] for i in ids]
    assert torch.equal(told[len(added) :], plain)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"speaker": "vivan"}, "did you mean vivian"),
        ({"speaker": 3}, "has to be a text"),
        ({"language": "latin"}, "known: auto, chinese, english"),
        ({"language": "sichuan_dialect"}, "no language is called"),
        ({"non_streaming_mode": "yes"}, "true or false"),
    ],
)
def test_wrong_parameters_are_refused_at_the_entry(params: dict[str, Any], said: str) -> None:
    entry = SpeechEntry(Path(CHECKPOINT))
    with pytest.raises(InvalidRequestError, match=said):
        entry.prompts(EntryRequest("hello", params=params))
    adapter = PromptInput(StageContext("talker", "prompt", CHECKPOINT, {}))
    with pytest.raises(InvalidRequestError, match=said):
        adapter.open("r", params)


def test_no_text_is_refused() -> None:
    entry = SpeechEntry(Path(CHECKPOINT))
    with pytest.raises(EmptyInputError):
        entry.prompts(EntryRequest(" \n"))
    with pytest.raises(EmptyInputError):
        spoken_prompt(SETTINGS, [500, 12, 198, 501, 198, 500, 12, 198], Voice())
    with pytest.raises(InvalidRequestError, match="between 0 and 511"):
        spoken_prompt(SETTINGS, [500, 12, 198, 9999, 501, 198, 500, 12, 198], Voice())


def test_the_entry_writes_the_official_template() -> None:
    (ids,) = SpeechEntry(Path(CHECKPOINT)).prompts(EntryRequest("", (Message("user", "ab"),)))
    tokenizer = SpeechEntry(Path(CHECKPOINT))._tokenizer
    letters = [tokenizer.token_to_id(letter) for letter in "ab"]
    assert ids == [500, 12, 198, *letters, 501, 198, 500, 12, 198]


def test_the_first_speaker_is_the_default_and_none_can_be_asked_for() -> None:
    assert speaker_of(SETTINGS, {}) == next(iter(SETTINGS.talker_config.spk_id))
    assert speaker_of(SETTINGS, {"speaker": ""}) is None


def test_voices_are_designed_without_speakers(copy: Copy) -> None:
    settings = TtsSettings.read(copy(tts_model_type="voice_design"))
    assert speaker_of(settings, {}) is None
    with pytest.raises(InvalidRequestError, match="instruct"):
        speaker_of(settings, {"speaker": "vivian"})


def test_the_small_checkpoint_takes_no_instruction(copy: Copy) -> None:
    adapter = PromptInput(StageContext("talker", "prompt", copy(tts_model_size="0b6"), {}))
    with pytest.raises(InvalidRequestError, match=r"0\.6B"):
        adapter.open("r", {"instruct": "calmly"})


def test_voice_cloning_is_refused(copy: Copy) -> None:
    folder = copy(tts_model_type="base")
    with pytest.raises(ModelUnavailableError, match="CustomVoice"):
        talker_facts(Path(folder))


def test_facts_come_from_the_checkpoint(copy: Copy) -> None:
    assert talker_facts(Path(CHECKPOINT)).sampling == {"stop_token_ids": [70]}
    assert codec_facts(Path(CHECKPOINT)).sample_rate == 24_000
    folder = Path(copy())
    shutil.rmtree(folder / "speech_tokenizer")
    with pytest.raises(ModelUnavailableError, match="speech_tokenizer"):
        codec_facts(folder)
    (folder / "config.json").write_text("{}")
    with pytest.raises(AntiphonError, match="Qwen3-TTS"):
        talker_facts(folder)


def test_other_positions_are_refused() -> None:
    talker = json.loads((Path(CHECKPOINT) / "config.json").read_text())["talker_config"]
    talker["rope_scaling"]["rope_type"] = "yarn"
    with pytest.raises(ModelUnavailableError, match="yarn"):
        talker_config(Qwen3TTSConfig(talker_config=talker))
