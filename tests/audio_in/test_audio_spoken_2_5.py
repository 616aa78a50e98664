"""The same with `qwen2.5-omni`: text, codes and sound are those of transformers' own `generate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2_5OmniProcessor

from antiphon.models.qwen2_5_omni.entries import ChatEntry
from antiphon.models.qwen2_5_omni.tiny import write_tiny
from antiphon.pipeline.entry import EntryRequest, Prompt
from antiphon.stage.resolve import HEARING
from audio_stages import clip
from engine_pool import EnginePool
from qwen2_5_omni_oracle import PAD, reference
from qwen2_5_omni_stages import Conversation, talker_spec, thinker_spec, token2wav_spec
from qwen3_omni_oracle import SAMPLE_RATE, Tone

TEXT, TALK = 16, 40
TONES = {"low": Tone(1.3, 127.0), "high": Tone(1.3, 291.0), "long": Tone(2.2, 77.0)}


@dataclass(frozen=True)
class Said:
    """What transformers makes of one prompt."""

    prompt: list[int]
    text: list[int]
    waveform: torch.Tensor


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("qwen2-5-omni")
    write_tiny(place)
    return str(place)


@pytest.fixture(scope="module")
def said(folder: str) -> dict[str, Said]:
    return {uid: _say(folder, given(folder, tone), tone) for uid, tone in TONES.items()}


@pytest.fixture(scope="module")
def stages(engines: EnginePool, folder: str) -> list[Any]:
    # 16 tokens a step: less than a sound has
    specs = (
        thinker_spec("heard-thinker-2-5", folder, max_num_batched_tokens=16, **HEARING),
        talker_spec("heard-talker-2-5", folder),
        token2wav_spec("heard-token2wav", folder),
    )
    return [engines.stage(spec) for spec in specs]


def given(folder: str, tone: Tone) -> Prompt:
    (prompt,) = ChatEntry(Path(folder)).prompts(EntryRequest("hi", audio=(clip(tone),)))
    assert isinstance(prompt, Prompt)
    return prompt


def _say(folder: str, prompt: Prompt, tone: Tone) -> Said:
    """The prompt is padded on the left by one token, as in `qwen2_5_omni_oracle`, and for its
    reason.
    """
    processor = Qwen2_5OmniProcessor.from_pretrained(folder)
    text = processor.tokenizer.decode(prompt.token_ids)
    inputs = dict(
        processor(text=text, audio=[tone.samples()], sampling_rate=SAMPLE_RATE, return_tensors="pt")
    )
    ids = torch.nn.functional.pad(inputs.pop("input_ids"), (1, 0), value=PAD)
    mask = torch.nn.functional.pad(inputs.pop("attention_mask"), (1, 0))
    model = reference(folder)
    talker = model.config.talker_config
    torch.manual_seed(0)
    sequences, waveform = model.generate(
        input_ids=ids,
        attention_mask=mask,
        **inputs,
        speaker="Chelsie",
        thinker_max_new_tokens=TEXT,
        thinker_eos_token_id=model.config.thinker_config.text_config.eos_token_id,
        thinker_do_sample=False,
        talker_max_new_tokens=TALK,
        talker_eos_token_id=[talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id],
        talker_do_sample=False,
        talker_repetition_penalty=1.0,
    )
    return Said(ids[0, 1:].tolist(), sequences[0, ids.shape[1] :].tolist(), waveform)


@pytest.mark.slow
def test_text_and_sound_are_those_of_transformers(
    stages: list[Any], folder: str, said: dict[str, Said]
) -> None:
    talk = Conversation(*stages)
    for uid, tone in TONES.items():
        prompt = given(folder, tone)
        talk.say(uid, prompt.token_ids, audio=prompt.audio, text_tokens=TEXT, talker_tokens=TALK)
        request = stages[0].scheduler.requests[uid]
        assert list(request.prompt_token_ids) == said[uid].prompt
    talk.run()
    for uid, expected in said.items():
        assert talk.errors(uid) == []
        assert talk.text(uid) == expected.text
        assert torch.equal(talk.sound(uid), expected.waveform)
    talk.assert_empty()
    assert said["low"].text != said["high"].text  # so it depends on what is heard
