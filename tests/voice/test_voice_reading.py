"""The grammar's bookkeeping: every phoneme once, in order, with codes, and always to the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.models.voice.reading import MAX_CODES, MAX_CODES_AT_END, Reading
from antiphon.models.voice.vocabulary import BOS, EOS, FIRST_CODE, SEP

PROMPT = [BOS, 184, 50, 4, 0, SEP]


def read(reading: Reading, output: list[int], choose_code: list[bool]) -> None:
    """Sample until EOS: a code where `choose_code` says so and one is allowed."""
    choices = iter(choose_code)
    while not output or output[-1] != EOS:
        allowed = reading.allowed()
        assert allowed.code or allowed.repeat
        wants_code = next(choices, True)
        code = allowed.code and (wants_code or not allowed.repeat)
        output.append(FIRST_CODE + 7 if code else allowed.repeat_id)


def test_first_comes_the_first_id() -> None:
    """No code before the first word mark."""
    assert Reading(PROMPT, [], 900).allowed() == (False, True, 184)


def test_a_phoneme_needs_a_code() -> None:
    """Right after an id only a code may come."""
    assert Reading(PROMPT, [184], 900).allowed() == (True, False, 50)


def test_after_a_code_both_may_come() -> None:
    """The model decides how long a phoneme is."""
    assert Reading(PROMPT, [184, 300], 900).allowed() == (True, True, 50)


def test_codes_of_a_phoneme_are_limited() -> None:
    """After sixteen codes the reading must go on."""
    assert Reading(PROMPT, [184, *[300] * MAX_CODES], 900).allowed() == (False, True, 50)


def test_codes_of_the_closing_stop_are_limited() -> None:
    """The voice must not slur on after the last word."""
    output = [184, 300, 50, 300, 4, *[300] * MAX_CODES_AT_END]
    assert Reading(PROMPT, output, 900).allowed() == (False, True, 0)


def test_after_the_last_id_comes_the_end() -> None:
    """EOS closes the reading."""
    output = [184, 300, 50, 300, 4, 300, 0, 300]
    assert Reading(PROMPT, output, 900).allowed() == (True, True, EOS)


@given(
    st.lists(st.integers(1, 177), min_size=1, max_size=60),
    st.lists(st.booleans(), max_size=400),
    st.integers(0, 300),
)
def test_every_reading_is_complete_and_fits(
    ids: list[int], choices: list[bool], spare: int
) -> None:
    """whatever the model prefers, each id is repeated in order and EOS comes within the room."""
    prompt = [BOS, 184, *ids, 0, SEP]
    room = 2 * len(prompt[1:-1]) + 1 + spare
    output: list[int] = []
    read(Reading(prompt, output, room), output, choices)
    assert [token for token in output if token < FIRST_CODE] == [*prompt[1:-1], EOS]
    assert len(output) <= room


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 40))
def test_state_follows_from_the_output_alone(choices: list[bool], look: int) -> None:
    """A resumed request, read again from its output, may go on exactly as before."""
    output: list[int] = []
    reading = Reading(PROMPT, output, 900)
    read(reading, output, choices)
    live: list[int] = []
    followed = Reading(PROMPT, live, 900)
    for token in output[: min(look, len(output) - 1)]:
        followed.allowed()
        live.append(token)
    assert followed.allowed() == Reading(PROMPT, list(live), 900).allowed()


def test_rolled_back_output_is_counted_again() -> None:
    """Output that upstream takes back is taken back here."""
    output = [184, 300, 50, 300]
    reading = Reading(PROMPT, output, 900)
    reading.allowed()
    del output[1:]
    assert reading.allowed() == (True, False, 50)


def test_unknown_ids_wait() -> None:
    """A placeholder at the end of the output changes nothing until its id is known."""
    output = [184, 300, -1]
    reading = Reading(PROMPT, output, 900)
    assert reading.allowed() == (True, True, 50)
    output[-1] = 50
    assert reading.allowed() == (True, False, 4)
