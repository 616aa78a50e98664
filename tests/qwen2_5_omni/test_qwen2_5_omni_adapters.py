"""Both ends of both edges, without an engine."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2_5OmniForConditionalGeneration

from antiphon.errors import (
    AdapterError,
    DeploymentError,
    InputTooLongError,
    InvalidRequestError,
    ModelUnavailableError,
)
from antiphon.models.checkpoint import read_rows
from antiphon.models.qwen2_5_omni.codes import CODES, CodesInput, CodesOutput
from antiphon.models.qwen2_5_omni.facts import talker_facts
from antiphon.models.qwen2_5_omni.noise import OwnNoise
from antiphon.models.qwen2_5_omni.params import SPEAKERS_FILE
from antiphon.models.qwen2_5_omni.speak_input import EMBEDDINGS, NO_CODEC, SpeakInput
from antiphon.models.qwen2_5_omni.speak_output import PROMPT, ROWS, SpeakOutput
from antiphon.models.qwen2_5_omni.speakers import Speakers
from antiphon.models.qwen2_5_omni.tiny import (
    CODEC,
    CODEC_VOCABULARY,
    SPEAKERS,
    SPECIALS,
    THINKER_HIDDEN,
)
from antiphon.models.qwen2_5_omni.topology import TOPOLOGY
from antiphon.payload.adapters import INPUT_IDS, Input, StageContext, StepRows, layer_output
from antiphon.payload.types import Payload, per_token
from antiphon.pipeline.deployed import deployed
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.edge_deployment import EdgeDeployment

MASK, BOS, END, PAD = (
    CODEC[f"tts_codec_{name}_token_id"] for name in ("mask", "start", "end", "pad")
)


def context(folder: str, *, stream: bool = False, **options: Any) -> StageContext:
    return StageContext("stage", "edge", folder, options, stream)


def embeddings(folder: str, *ids: int) -> torch.Tensor:
    return read_rows(folder, EMBEDDINGS, ids)


# --- speak: the thinker's end ---------------------------------------------------------------------


def step(first: int, ids: list[int]) -> StepRows:
    """Hidden states that tell their position, embeddings that tell their token."""
    positions = torch.arange(first, first + len(ids))
    hidden = positions[:, None].expand(-1, THINKER_HIDDEN).float() / 8
    embeds = torch.tensor(ids)[:, None].expand(-1, THINKER_HIDDEN).float()
    return StepRows(first, hidden, {INPUT_IDS: torch.tensor(ids), layer_output(0): embeds})


def expected(first: int, values: list[int]) -> torch.Tensor:
    """Rows whose embeddings have these values, 0 for none."""
    positions = torch.arange(first, first + len(values)) / 8
    return (positions + torch.tensor(values))[:, None].expand(-1, THINKER_HIDDEN)


@pytest.mark.parametrize("stream", [True, False])
def test_rows_leave_with_their_tokens_or_all_at_once(checkpoint: str, stream: bool) -> None:
    """Sound, pictures and video are without embeddings, but only in the prompt."""
    silent = SPECIALS["<|audio_pad|>"], SPECIALS["<|image_pad|>"], SPECIALS["<|video_pad|>"]
    adapter = SpeakOutput(context(checkpoint, stream=stream)).open("a", {})
    made = [adapter.on_rows(step(0, [9, silent[0]])), adapter.on_rows(step(2, [*silent[1:], 8]))]
    assert made == [[], []]
    sent = [*adapter.on_tokens([silent[0]])]
    assert adapter.on_rows(step(5, [silent[0]])) == []
    sent += adapter.on_tokens([4])
    sent += adapter.on_end()
    assert [payload.meta for payload in sent] == [{PROMPT: 5}, {}][: 2 if stream else 1]
    rows = torch.cat([payload.fields[ROWS].tensor for payload in sent])
    assert torch.equal(rows, expected(0, [9, 0, 0, 0, 8, silent[0]]))


def test_tokens_that_come_together_do_not_move_the_prompts_end(checkpoint: str) -> None:
    """As drafts that were right do: the rows of all but the last exist already."""
    adapter = SpeakOutput(context(checkpoint, stream=True)).open("a", {})
    adapter.on_rows(step(0, [9, 8, 7, 6, 5]))
    (payload,) = adapter.on_tokens([6, 5, 4])
    assert payload.meta == {PROMPT: 3}


def test_rows_keep_the_thinkers_dtype(checkpoint: str) -> None:
    adapter = SpeakOutput(context(checkpoint)).open("a", {})
    rows = step(0, [9, 8])
    side = {**rows.side, layer_output(0): rows.side[layer_output(0)].bfloat16()}
    assert rows.hidden is not None
    adapter.on_rows(StepRows(0, rows.hidden.bfloat16(), side))
    adapter.on_tokens([7])
    (payload,) = adapter.on_end()
    assert payload.fields[ROWS].tensor.dtype == torch.bfloat16


def test_a_conversation_without_its_beginning_is_an_error(checkpoint: str) -> None:
    """A session's next segment, whose rows begin in the middle."""
    adapter = SpeakOutput(context(checkpoint)).open("a", {})
    with pytest.raises(AdapterError, match="position 3 came where those of 0 are next"):
        adapter.on_rows(step(3, [9]))


# --- speak: the talker's end ----------------------------------------------------------------------


def rows_payload(rows: torch.Tensor, **meta: int) -> Payload:
    return Payload({ROWS: per_token(rows)}, meta)


def test_the_prompt_is_transformers(checkpoint: str) -> None:
    """Rows, marks and ids; then a row for each token, the end of the text, and padding."""
    rows = torch.randn(6, THINKER_HIDDEN)
    speech = SpeakInput(context(checkpoint, stream=True)).open("a", {"speaker": "ethan"})
    assert speech.on_payload(rows_payload(rows[:2], prompt=3), last=False) == Input()
    assert speech.on_payload(rows_payload(rows[2:3]), last=False) == Input()
    made = speech.on_payload(rows_payload(rows[3:5]), last=False)
    assert made.plan is not None
    assert made.plan.token_ids == (MASK, MASK, MASK, PAD, BOS)
    assert made.plan.rows_local
    assert made.prompt_rows is not None
    assert made.prompt_marks is not None
    begin = embeddings(checkpoint, SPEAKERS["Ethan"])
    assert torch.equal(made.prompt_rows, torch.cat([rows[:3], begin, rows[3:4]]))
    assert made.prompt_marks.tolist() == [[NO_CODEC], [NO_CODEC], [NO_CODEC], [PAD], [BOS]]
    assert made.rows is not None
    assert torch.equal(made.rows, rows[4:5])
    last = speech.on_payload(rows_payload(rows[5:]), last=True)
    end, pad = embeddings(checkpoint, SPECIALS["<tts_text_eod>"], SPECIALS["<tts_pad>"])
    assert last.rows is not None
    assert torch.equal(last.rows, torch.stack([rows[5], end]))
    assert last.padding is not None
    assert torch.equal(last.padding, pad)


def test_an_empty_end_ends_the_text(checkpoint: str) -> None:
    speech = SpeakInput(context(checkpoint, stream=True)).open("a", {})
    given = torch.randn(3, THINKER_HIDDEN, dtype=torch.bfloat16)
    begun = speech.on_payload(rows_payload(given, prompt=2), last=False)
    assert begun.rows is None
    assert begun.padding is None
    ended = speech.on_end()
    assert ended.rows is not None
    assert ended.padding is not None
    assert ended.rows.dtype == ended.padding.dtype == torch.bfloat16
    assert len(ended.rows) == 1


def test_without_a_reply_there_is_no_prompt(checkpoint: str) -> None:
    rows = torch.randn(2, THINKER_HIDDEN)
    for at_once in (True, False):
        speech = SpeakInput(context(checkpoint)).open("a", {})
        assert speech.on_payload(rows_payload(rows, prompt=2), last=at_once) == Input()
        assert speech.on_end() == Input()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (Payload({}), "has to be rows of 96 numbers, and is None"),
        (rows_payload(torch.zeros(2, 5), prompt=1), r"and is \(2, 5\)"),
        (rows_payload(torch.zeros(2, THINKER_HIDDEN).int(), prompt=1), "of floating point"),
        (rows_payload(torch.zeros(2, THINKER_HIDDEN)), "is None, not a count of rows"),
        (rows_payload(torch.zeros(2, THINKER_HIDDEN), prompt=0), "is 0, not a count of rows"),
    ],
)
def test_rows_that_cannot_be_are_refused(checkpoint: str, payload: Payload, message: str) -> None:
    speech = SpeakInput(context(checkpoint)).open("a", {})
    with pytest.raises(AdapterError, match=message):
        speech.on_payload(payload, last=True)


# --- speakers -------------------------------------------------------------------------------------


def test_speakers_are_known_by_name_in_any_case(checkpoint: str) -> None:
    assert Speakers(checkpoint).chosen({"speaker": "ETHAN"}).bos_token == SPEAKERS["Ethan"]


def test_without_a_name_it_is_who_speaks_in_transformers(checkpoint: str) -> None:
    generate = Qwen2_5OmniForConditionalGeneration.generate
    usual = inspect.signature(generate).parameters["speaker"].default
    assert Speakers(checkpoint).chosen({}).name == usual == "Chelsie"


@pytest.mark.parametrize(
    ("names", "chosen"), [(("Ethan", "chelsie"), "chelsie"), (("Ethan", "Anna"), "Ethan")]
)
def test_where_there_is_no_chelsie_the_first_one_speaks(
    checkpoint: str, tmp_path: Path, names: tuple[str, ...], chosen: str
) -> None:
    """Upper and lower case are the same here too."""
    one = torch.load(Path(checkpoint) / SPEAKERS_FILE)["Ethan"]
    torch.save(dict.fromkeys(names, one), tmp_path / SPEAKERS_FILE)
    assert Speakers(tmp_path).chosen({}).name == chosen


@pytest.mark.parametrize("made", [SpeakOutput, SpeakInput, CodesInput])
@pytest.mark.parametrize("name", ["Ethen", 3, ""])
def test_an_unknown_speaker_is_the_callers_error(checkpoint: str, made: Any, name: object) -> None:
    """Every end that has to know the speaker says so, with all names."""
    factory = made(context(checkpoint))
    with pytest.raises(InvalidRequestError, match="the checkpoint's speakers are Chelsie, Ethan"):
        factory.open("a", {"speaker": name})


def test_a_checkpoint_without_speakers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match="needs it for speech"):
        Speakers(tmp_path)
    torch.save({"Chelsie": {"bos_token": 3}}, tmp_path / SPEAKERS_FILE)
    with pytest.raises(ModelUnavailableError, match="does not describe speakers: 'cond'"):
        Speakers(tmp_path)
    for damaged in (b"", b"version https://git-lfs.github.com/spec/v1", b"PK\x03\x04 and no more"):
        (tmp_path / SPEAKERS_FILE).write_bytes(damaged)
        with pytest.raises(ModelUnavailableError, match="is damaged"):
            Speakers(tmp_path)
    torch.save({}, tmp_path / SPEAKERS_FILE)
    with pytest.raises(ModelUnavailableError, match="names no speaker"):
        Speakers(tmp_path)


def test_a_folder_without_speakers_is_known_before_the_start(
    checkpoint: str, tmp_path: Path
) -> None:
    assert talker_facts(Path(checkpoint)).sampling == {}
    with pytest.raises(ModelUnavailableError, match="it has the speakers"):
        talker_facts(tmp_path)


# --- codes ----------------------------------------------------------------------------------------


def test_codes_end_at_either_end_id(checkpoint: str) -> None:
    for end in (END, PAD):
        adapter = CodesOutput(context(checkpoint)).open("a", {})
        assert adapter.on_tokens([5, 6]) == adapter.on_tokens([7, end, 8]) == []
        (payload,) = adapter.on_end()
        assert payload.fields[CODES].tensor.tolist() == [5, 6, 7]
        assert payload.fields[CODES].tensor.dtype == torch.int32


def test_nothing_said_is_an_empty_end(checkpoint: str) -> None:
    adapter = CodesOutput(context(checkpoint)).open("a", {})
    assert adapter.on_tokens([END]) == []
    assert adapter.on_end() == []


def test_a_stream_of_codes_is_refused_before_the_start() -> None:
    given = Deployment(pipeline="qwen2.5-omni", edges={"codes": EdgeDeployment(mode="stream")})
    with pytest.raises(
        DeploymentError, match=r"edges\.codes\.mode: .* token2wav everything at once"
    ):
        deployed(TOPOLOGY, given)


def codes_payload(*codes: int) -> Payload:
    return Payload({CODES: per_token(torch.tensor(codes, dtype=torch.int32))})


def test_codes_are_the_vocoders_prompt(checkpoint: str) -> None:
    factory = CodesInput(context(checkpoint, seed=9))
    made = factory.open("a", {}).on_payload(codes_payload(3, 1, 2), last=True)
    assert made.plan is not None
    assert made.plan.token_ids == (3, 1, 2)
    assert made.plan.extra == {"speaker": "Chelsie", "seed": 9}
    made = factory.open("b", {"speaker": "ethan", "seed": 4}).on_payload(
        codes_payload(3), last=True
    )
    assert made.plan is not None
    assert made.plan.extra == {"speaker": "Ethan", "seed": 4}


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (Payload({}), AdapterError),
        (Payload({CODES: per_token(torch.tensor([1]))}), AdapterError),
        (codes_payload(), AdapterError),
        (codes_payload(1, -1), AdapterError),
        (codes_payload(1, CODEC_VOCABULARY + 1), AdapterError),  # num_embeds and one more exist
        (codes_payload(*[1] * 513), InputTooLongError),
    ],
)
def test_codes_that_cannot_be_decoded_are_refused(
    checkpoint: str, payload: Payload, error: type[Exception]
) -> None:
    """Before they reach a step with others in it."""
    utterance = CodesInput(context(checkpoint)).open("a", {})
    with pytest.raises(error):
        utterance.on_payload(payload, last=True)
    assert utterance.on_payload(codes_payload(*[CODEC_VOCABULARY] * 512), last=True).plan


@pytest.mark.parametrize("seed", [-1, 1 << 63, 1.5, True, "7"])
def test_a_seed_is_a_whole_number(checkpoint: str, seed: Any) -> None:
    with pytest.raises(InvalidRequestError, match="give a whole number"):
        CodesInput(context(checkpoint)).open("a", {"seed": seed})


# --- noise ----------------------------------------------------------------------------------------


def test_own_noise_is_that_of_the_seeded_global_generator() -> None:
    """Draw by draw, and nothing else is changed."""
    torch.manual_seed(7)
    expected = [torch.randn([2, 3]), torch.randn(4)]
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    with OwnNoise(7):
        made = [torch.randn([2, 3], device="cpu"), torch.randn(4)]
        assert torch.equal(torch.random.get_rng_state(), before)
        own = torch.Generator().manual_seed(3)
        given = torch.randn(2, generator=own)
    assert all(map(torch.equal, made, expected))
    assert torch.equal(given, torch.randn(2, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(torch.randn(4), expected[1])
