"""What Whisper may write, in which order: the rules of its generation_config.json."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

from antiphon.errors import ModelUnavailableError
from antiphon.models.voice.hearing_rules import NO_SPEECH, SWITCH, HearingRules

VOCABULARY = 12
END, NO_SPEECH_ID, NO_TIMESTAMPS = 7, 9, 10
CONFIG = {
    "eos_token_id": END,
    "no_timestamps_token_id": NO_TIMESTAMPS,
    "is_multilingual": False,
    "suppress_tokens": [1, 2],
    "begin_suppress_tokens": [3, END],
}
ON = SamplingParams(max_tokens=4, extra_args={SWITCH: True})


def rules(config: dict[str, object] = CONFIG) -> HearingRules:
    model = SimpleNamespace(try_get_generation_config=lambda: config)
    return HearingRules(SimpleNamespace(model_config=model), torch.device("cpu"), False)  # type: ignore[arg-type]


def added(rules: HearingRules, *outputs: list[int], params: SamplingParams = ON) -> None:
    requests = [(row, params, [8], output) for row, output in enumerate(outputs)]
    rules.update_state(BatchUpdate(len(outputs), [], requests, []))


def allowed(row: torch.Tensor) -> set[int]:
    return {token for token, score in enumerate(row.tolist()) if score > float("-inf")}


def with_speech(probability: float) -> torch.Tensor:
    """Logits [vocabulary] that give `<|nospeech|>` this probability."""
    rest = torch.full((VOCABULARY,), (1 - probability) / (VOCABULARY - 1))
    rest[NO_SPEECH_ID] = probability
    return rest.log()


@given(st.floats(0.01, 0.99))
def test_the_first_token_says_whether_there_is_speech(probability: float) -> None:
    made = rules()
    added(made, [])
    (row,) = made.apply(with_speech(probability)[None])
    if abs(probability - NO_SPEECH) > 1e-3:
        assert allowed(row) == {END if probability > NO_SPEECH else NO_TIMESTAMPS}


def test_what_is_suppressed_at_the_beginning_and_later() -> None:
    made = rules()
    added(made, [NO_TIMESTAMPS], [NO_TIMESTAMPS, 5], [NO_TIMESTAMPS, 5, 5])
    rows = made.apply(torch.zeros(3, VOCABULARY))
    everything = set(range(VOCABULARY))
    assert allowed(rows[0]) == everything - {1, 2, 3, END}
    assert allowed(rows[1]) == allowed(rows[2]) == everything - {1, 2}


def test_a_request_is_followed_by_what_it_has_written() -> None:
    """Also where its row has moved; upstream appends to the list that it has given."""
    made, output = rules(), list[int]()
    added(made, [NO_TIMESTAMPS, 5], output)
    output.append(NO_TIMESTAMPS)
    made.update_state(BatchUpdate(1, [0], [], [(1, 0, MoveDirectionality.UNIDIRECTIONAL)]))
    assert 3 not in allowed(made.apply(torch.zeros(1, VOCABULARY))[0])
    output.append(5)
    assert 3 in allowed(made.apply(torch.zeros(1, VOCABULARY))[0])


def test_other_requests_are_left_alone() -> None:
    made = rules()
    added(made, [], params=SamplingParams(max_tokens=4))
    assert allowed(made.apply(torch.zeros(1, VOCABULARY))[0]) == set(range(VOCABULARY))
    with pytest.raises(ValueError, match=SWITCH):
        HearingRules.validate_params(SamplingParams(extra_args={SWITCH: "yes"}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_multilingual": True}, "English alone"),
        ({"suppress_tokens": None}, "no suppress_tokens"),
        ({"no_timestamps_token_id": None}, "no no_timestamps_token_id"),
    ],
)
def test_a_checkpoint_that_is_no_english_whisper(change: dict[str, object], message: str) -> None:
    config = {key: value for key, value in (CONFIG | change).items() if value is not None}
    with pytest.raises(ModelUnavailableError, match=message):
        rules(config)


def test_the_checkpoints_own_rules() -> None:
    """As vLLM reads them: what differs from transformers' defaults."""
    from antiphon.models.voice.weights import hearing_checkpoint

    file = hearing_checkpoint() / "generation_config.json"
    config = GenerationConfig.from_pretrained(file.parent).to_diff_dict()
    assert rules(config) is not None
    given = json.loads(file.read_text())
    assert set(given["begin_suppress_tokens"]) == {220, given["eos_token_id"]}
    assert len(given["suppress_tokens"]) > 80
