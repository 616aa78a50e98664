"""The edge between thinker and talker, without engines: what crosses, and what becomes of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import AdapterError, InvalidRequestError
from antiphon.models.qwen3_omni.dialogue import Markers, TalkerView, talker_view
from antiphon.models.qwen3_omni.speak_input import HIDDEN, NO_CODEC, SpeakInput
from antiphon.models.qwen3_omni.speak_output import MEDIA, PROMPT, REPLY, SpeakOutput
from antiphon.models.qwen3_omni.tiny import SPEAKERS, TALKER_HIDDEN, THINKER_HIDDEN
from antiphon.models.qwen3_omni.voices import choose_speaker, speakers_of
from antiphon.payload.adapters import INPUT_IDS, Input, StageContext, StepRows, layer_output
from antiphon.payload.types import Payload, per_token
from qwen3_omni_oracle import Oracle, Tone, chat, generate, reference

START, END, SYSTEM, USER, ASSISTANT, AUDIO = 500, 501, 10, 11, 12, 505
MARKERS = Markers(START, USER, ASSISTANT, frozenset({AUDIO}), 2)


def context(folder: str, *, stream: bool = True) -> StageContext:
    return StageContext("stage", "speak", folder, {}, stream)


@dataclass
class Step:
    """What a step gives an adapter: rows of this many positions, and the tokens accepted then."""

    rows: int
    tokens: int


def steps(prompt: int, output: int, chunk: int) -> list[Step]:
    """A request whose prompt is computed `chunk` tokens at a time."""
    found = [Step(chunk, 0)] * ((prompt - 1) // chunk)
    found.append(Step(prompt - chunk * len(found), 1))
    return [*found, *[Step(1, 1)] * (output - 1)]


def send(
    folder: str, oracle: Oracle, *, stream: bool = True, chunk: int = 1000, shift: int = 0
) -> list[Payload]:
    """What leaves the thinker if it computes what transformers does."""
    factory = SpeakOutput(context(folder, stream=stream))
    accepted = layer_output(reference(folder).config.talker_config.accept_hidden_layer)
    assert factory.needs.side_outputs == (INPUT_IDS, layer_output(0), accepted)
    adapter = factory.open("r", {})
    ids = torch.tensor([*oracle.prompt, *oracle.text])
    embeds = oracle.embeds.roll(shift, 0)
    sent: list[Payload] = []
    first = 0
    for step in steps(len(oracle.prompt), len(oracle.text), chunk):
        rows = slice(first, first + step.rows)
        side = {
            INPUT_IDS: ids[rows],
            layer_output(0): embeds[rows],
            accepted: oracle.hidden[rows],
        }
        sent += adapter.on_rows(StepRows(first, None, side))
        first += step.rows
        if step.tokens:
            sent += adapter.on_tokens([0] * step.tokens)
    assert first == len(oracle.embeds)
    return [*sent, *adapter.on_end()]


def receive(folder: str, sent: Sequence[Payload], *, stream: bool = True) -> Input:
    """All that the talker is given; on a stream the end comes empty."""
    adapter = SpeakInput(context(folder, stream=stream)).open("r", {"speaker": "ethan"})
    made = [adapter.on_payload(p, last=not stream and p is sent[-1]) for p in sent]
    made += [adapter.on_end()] if stream else []
    assert [m.plan is not None for m in made] == [True] + [False] * (len(made) - 1)
    assert [m.padding is not None for m in made] == [False] * (len(made) - 1) + [True]
    rows = [m.rows for m in made if m.rows is not None]
    return replace(made[0], rows=torch.cat(rows), padding=made[-1].padding)


def near(made: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal but for the order of sums: a projection of more rows at once adds up differently."""
    return made.shape == expected.shape and float((made - expected).abs().max()) < 1e-5


def talker_prompt(folder: str, made: Input) -> torch.Tensor:
    """The input embeddings that transformers' talker makes of planned rows."""
    talker = reference(folder).talker
    assert made.prompt_rows is not None
    assert made.prompt_marks is not None
    with torch.inference_mode():
        text = talker.text_projection(made.prompt_rows)
        hidden = talker.hidden_projection(made.prompt_rows)
        kind, codec = made.prompt_marks.unbind(1)
        embeds = torch.where((kind == HIDDEN)[:, None], hidden, text)
        added = talker.get_input_embeddings()(codec.clamp(min=0))
        return embeds + torch.where((codec == NO_CODEC)[:, None], 0.0, added)


CASES = {
    "text": ("what is it?",),
    "sound": (Tone(), "what is it?"),
    "sounds": ("before", Tone(0.5), "between", Tone(1.1, 300.0)),
}


@pytest.fixture(params=CASES)
def oracle(request: pytest.FixtureRequest, checkpoint: str) -> Oracle:
    return generate(checkpoint, chat(checkpoint, *CASES[request.param]), 9, 12)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "full"])
@pytest.mark.parametrize("chunk", [1000, 7, 1])
def test_the_talker_is_given_what_transformers_gives_it(
    checkpoint: str, oracle: Oracle, stream: bool, chunk: int
) -> None:
    made = receive(checkpoint, send(checkpoint, oracle, stream=stream, chunk=chunk), stream=stream)
    assert made.plan is not None
    assert made.rows is not None
    assert made.padding is not None
    assert made.plan.rows_local
    assert len(made.plan.token_ids) == len(oracle.talker_prompt)
    assert near(talker_prompt(checkpoint, made), oracle.talker_prompt)
    with torch.inference_mode():
        project = reference(checkpoint).talker.text_projection
        assert near(project(made.rows), oracle.trailing)
        assert near(project(made.padding[None])[0], oracle.padding)


def test_shifted_rows_are_something_else(checkpoint: str, oracle: Oracle) -> None:
    """The negative control: the comparison sees a single wrong row."""
    made = receive(checkpoint, send(checkpoint, oracle, shift=1))
    assert not near(talker_prompt(checkpoint, made), oracle.talker_prompt)


def test_a_stream_begins_with_the_replys_first_token(checkpoint: str, oracle: Oracle) -> None:
    """The prompt leaves once, with it; then a row for each token that the thinker feeds back."""
    first, *rest = send(checkpoint, oracle, chunk=5)
    assert set(first.fields) == {PROMPT, MEDIA}
    assert [set(p.fields) for p in rest] == [{REPLY}] * (len(oracle.text) - 2)
    assert all(len(p.fields[REPLY].tensor) == 1 for p in rest)


def test_a_full_edge_carries_one_payload(checkpoint: str, oracle: Oracle) -> None:
    (only,) = send(checkpoint, oracle, stream=False)
    assert set(only.fields) == {PROMPT, MEDIA, REPLY}
    assert len(only.fields[REPLY].tensor) == len(oracle.text) - 2


def test_only_what_the_talker_needs_crosses(checkpoint: str, oracle: Oracle) -> None:
    """No system text, one row for each position, and of a layer only the rows of media."""
    first = send(checkpoint, oracle)[0]
    rows, media = first.fields[PROMPT].tensor, first.fields[MEDIA].tensor.bool()
    ids = torch.tensor(oracle.prompt)
    begin = int((ids == USER).nonzero()[0]) - 1
    assert torch.equal(media[:-4], (ids == AUDIO)[begin:-3])
    assert torch.equal(rows[media], oracle.hidden[: len(ids)][ids == AUDIO])
    assert torch.equal(rows[~media], oracle.embeds[begin : begin + len(rows)][~media])
    assert rows.dtype == oracle.embeds.dtype


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "full"])
def test_a_reply_of_one_token_is_not_spoken(checkpoint: str, stream: bool) -> None:
    """It is never fed back, so there is no row of it. transformers' generate raises here."""
    prompt = chat(checkpoint, "what is it?")
    with pytest.raises(RuntimeError, match="size of tensor"):
        generate(checkpoint, prompt, 1, 5)
    known = generate(checkpoint, prompt, 2, 5)
    rows = len(known.prompt)
    short = Oracle(
        **{
            **vars(known),
            "text": known.text[:1],
            "embeds": known.embeds[:rows],
            "hidden": known.hidden[:rows],
        }
    )
    assert send(checkpoint, short, stream=stream) == []
    assert SpeakInput(context(checkpoint)).open("r", {}).on_end() == Input()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "full"])
def test_a_reply_of_two_tokens_is_spoken(checkpoint: str, stream: bool) -> None:
    known = generate(checkpoint, chat(checkpoint, "what is it?"), 2, 5)
    made = receive(checkpoint, send(checkpoint, known, stream=stream), stream=stream)
    assert made.rows is not None
    assert near(talker_prompt(checkpoint, made), known.talker_prompt)
    with torch.inference_mode():
        project = reference(checkpoint).talker.text_projection
        assert near(project(made.rows), known.trailing)


def test_half_precision_stays_what_it_is(checkpoint: str) -> None:
    """Rows cross in the dtype that the thinker made, and rows of the checkpoint join them in it."""
    known = generate(checkpoint, chat(checkpoint, "what is it?"), 5, 5)
    half = {name: getattr(known, name).bfloat16() for name in ("embeds", "hidden")}
    made = receive(checkpoint, send(checkpoint, Oracle(**{**vars(known), **half})))
    for rows in (made.prompt_rows, made.rows, made.padding):
        assert rows is not None
        assert rows.dtype == torch.bfloat16


# --- who speaks -------------------------------------------------------------------------------


def speaker_mark(folder: str, **params: object) -> int:
    known = generate(folder, chat(folder, "what is it?"), 3, 5)
    adapter = SpeakInput(context(folder)).open("r", params)  # type: ignore[arg-type]
    marks = adapter.on_payload(send(folder, known)[0], last=False).prompt_marks
    assert marks is not None
    return int(marks[-3, 1])


@pytest.mark.parametrize("name", ["ethan", "Ethan", "CHELSIE"])
def test_the_speaker_is_the_requests(checkpoint: str, name: str) -> None:
    assert speaker_mark(checkpoint, speaker=name) == SPEAKERS[name.lower()]


def test_without_a_name_it_is_who_speaks_in_transformers(checkpoint: str) -> None:
    """Not the first one, which is another."""
    usual = inspect.signature(reference(checkpoint).generate).parameters["speaker"].default
    assert next(iter(speakers_of(checkpoint))) != usual.lower()
    assert speaker_mark(checkpoint) == SPEAKERS[usual.lower()]


@pytest.mark.parametrize(("speakers", "chosen"), [({"b": 7, "ETHAN": 8}, 8), ({"b": 7, "a": 8}, 7)])
def test_where_there_is_no_ethan_the_first_one_speaks(
    speakers: dict[str, int], chosen: int
) -> None:
    assert choose_speaker(speakers, None) == chosen


@pytest.mark.parametrize("name", ["nobody", "", 3])
def test_an_unknown_speaker_is_an_error_that_lists_them(checkpoint: str, name: object) -> None:
    with pytest.raises(InvalidRequestError, match="chelsie, ethan"):
        SpeakInput(context(checkpoint)).open("r", {"speaker": name})  # type: ignore[dict-item]


# --- what a conversation means ----------------------------------------------------------------


def turn(role: int, *ids: int) -> list[int]:
    return [START, role, 3, *ids, END, 3]


def open_turn(*ids: int) -> list[int]:
    return [START, ASSISTANT, 3, *ids]


def test_a_history_gives_what_users_said_and_the_last_turn() -> None:
    history = [*turn(SYSTEM, 40), *turn(USER, 41, 42), *turn(ASSISTANT, 43), *turn(USER, 44)]
    prompt = [*history, *open_turn()]
    assert talker_view(prompt, MARKERS) == TalkerView([*range(6, 13), *range(19, 25)], len(history))


def test_a_begun_reply_belongs_to_the_reply() -> None:
    prompt = [*turn(USER, 41), *open_turn(50, 51)]
    assert talker_view(prompt, MARKERS) == TalkerView(list(range(6)), 6)


def test_special_tokens_of_a_user_begin_a_turn_as_in_transformers() -> None:
    """Ids alone decide: what follows is another turn, and the last assistant's is the reply's."""
    prompt = [*turn(USER, 41, START, SYSTEM, 42, START, ASSISTANT, 43), *open_turn()]
    assert talker_view(prompt, MARKERS) == TalkerView([0, 1, 2, 3], len(prompt) - 3)


def test_a_prompt_without_a_reply_cannot_be_spoken() -> None:
    with pytest.raises(AdapterError, match="no turn of the assistant"):
        talker_view(turn(USER, 41), MARKERS)


def expected_view(prompt: Sequence[int]) -> TalkerView:
    """transformers' own lines (`generate`, "Prepare talker input")."""
    ids = torch.tensor([list(prompt)])
    length = ids.shape[1]
    places = torch.arange(length).unsqueeze(0).expand_as(ids)
    starts = torch.where(ids == START, places, places.new_full((), -1))
    previous = torch.cummax(starts, dim=-1).values.clamp_min(0)
    roles = ids.gather(1, (previous + 1).clamp_max(length - 1))
    begins = (ids[:, :-1] == START) & (ids[:, 1:] == ASSISTANT)
    reply = torch.nonzero(begins[0], as_tuple=False).flatten()[-1].item()
    return TalkerView((roles == USER)[0].nonzero().flatten().tolist(), int(reply))


IDS = st.lists(st.sampled_from([START, END, SYSTEM, USER, ASSISTANT, AUDIO, 3, 40]), max_size=30)


@given(before=IDS, after=IDS)
def test_any_prompt_is_seen_as_transformers_sees_it(before: list[int], after: list[int]) -> None:
    prompt = [*before, START, ASSISTANT, *after]
    assert talker_view(prompt, MARKERS) == expected_view(prompt)


# --- payloads that nobody sent ----------------------------------------------------------------


def payloads() -> Iterable[Payload]:
    rows = torch.zeros(9, THINKER_HIDDEN)
    marks = torch.zeros(9, dtype=torch.uint8)
    yield Payload({})
    yield Payload({PROMPT: per_token(rows)})
    yield Payload({PROMPT: per_token(rows), MEDIA: per_token(marks[1:])})
    yield Payload({PROMPT: per_token(rows[:3]), MEDIA: per_token(marks[:3])})
    yield Payload({PROMPT: per_token(rows[:, :TALKER_HIDDEN]), MEDIA: per_token(marks)})
    yield Payload({PROMPT: per_token(rows[0]), MEDIA: per_token(marks)})
    yield Payload({PROMPT: per_token(rows.long()), MEDIA: per_token(marks)})


@pytest.mark.parametrize("payload", [*payloads()])
def test_a_wrong_first_payload_is_an_error(checkpoint: str, payload: Payload) -> None:
    with pytest.raises(AdapterError):
        SpeakInput(context(checkpoint)).open("r", {}).on_payload(payload, last=False)


def test_a_later_payload_without_a_row_is_an_error(checkpoint: str) -> None:
    known = generate(checkpoint, chat(checkpoint, "what is it?"), 3, 5)
    adapter = SpeakInput(context(checkpoint)).open("r", {})
    adapter.on_payload(send(checkpoint, known)[0], last=False)
    with pytest.raises(AdapterError, match="reply"):
        adapter.on_payload(Payload({}), last=False)
