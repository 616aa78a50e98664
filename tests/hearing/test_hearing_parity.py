"""The hearing stage writes what transformers' `generate` writes, token by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from antiphon.errors import error_codes
from antiphon.stage.messages import Sleep, Wake
from hearing_stage import END, NO_TIMESTAMPS, RATE, START, heard, plain, speech, submit, transcribed
from tiny import Driven

TEXTS = (
    "Yes.",
    "What is the capital of France?",
    "Please close the window before it starts to rain.",
    "The lighthouse keeper lit the lamp before sunset. Two small boats crossed the bay in calm"
    " weather. A warm coat is useful when the north wind blows. She wrote the address on the back"
    " of an envelope.",
    "My brother repaired the old wooden gate yesterday. Snow covered the roof of the village"
    " church. The river runs slowly past the empty mill. He carried a heavy basket of apples up the"
    " hill. The teacher drew a circle on the white board. Our neighbours planted a row of young"
    " trees.",
)


def waves() -> list[np.ndarray]:
    """Of 1 to 20 s; the last is too soft to be heard well, and noisy."""
    made = [speech(text) for text in TEXTS]
    noise = np.random.default_rng(1).standard_normal(len(made[2])).astype(np.float32)
    return [*made, 0.05 * made[2] + 0.002 * noise]


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    return [transcribed(wave) for wave in waves()]


def test_one_at_a_time(cramped: Driven, wanted: Sequence[Sequence[int]]) -> None:
    assert [heard(cramped, [wave])[0] for wave in waves()] == wanted
    lengths = [len(text) for text in wanted]
    assert (min(lengths) < 5, max(lengths) > 40, len(lengths)) == (True, True, 6)
    cramped.assert_empty()


def test_all_at_once_with_preemptions(cramped: Driven, wanted: Sequence[Sequence[int]]) -> None:
    """Whoever loses its blocks is encoded again: two sounds fill the cache but for their text."""
    cramped.clear()
    for index, wave in enumerate(waves()):
        submit(cramped, f"w{index}", wave)
    requests, preempted = cramped.scheduler.requests, 0
    while cramped.host.has_work:
        cramped.host.step()
        preempted = max(preempted, *(r.num_preemptions for r in requests.values()), 0, 0)
    assert preempted
    assert [plain(cramped.tokens(f"w{index}")) for index in range(len(wanted))] == wanted
    cramped.assert_empty()


def test_another_sound_is_another_text(cramped: Driven, wanted: Sequence[Sequence[int]]) -> None:
    """Negative control: what is written follows from the samples."""
    (backwards,) = heard(cramped, [np.ascontiguousarray(waves()[1][::-1])])
    assert backwards != wanted[1]


@pytest.mark.parametrize("level", [0.0, 0.001, 0.1])
def test_without_speech_nothing_is_written(cramped: Driven, level: float) -> None:
    """Where transformers writes "you": silence, hiss and loud noise."""
    noise = np.random.default_rng(0).standard_normal(2 * RATE).astype(np.float32)
    assert transcribed(level * noise) != []
    assert heard(cramped, [level * noise]) == [[]]
    assert cramped.tokens("w0") == [END]


def test_a_transcript_opens_without_timestamps(cramped: Driven) -> None:
    heard(cramped, [waves()[0]])
    tokens = cramped.tokens("w0")
    assert (tokens[0], tokens[-1]) == (NO_TIMESTAMPS, END)


def test_a_text_alone_is_refused(cramped: Driven) -> None:
    cramped.clear()
    cramped.submit("t", [START])
    (ending,) = cramped.endings("t")
    assert ending.error is not None
    assert error_codes()[ending.error.code].__name__ == "InvalidRequestError"
    assert "give audio" in ending.error.message
    cramped.assert_empty()


def test_an_abort_gives_everything_back(cramped: Driven) -> None:
    submit(cramped, "a", waves()[3])
    submit(cramped, "b", waves()[4])
    cramped.run_until(lambda: len(cramped.tokens("a")) > 3)
    cramped.abort("a", "b")
    cramped.assert_empty()


def test_after_a_sleep_it_is_heard_again(cramped: Driven, wanted: Sequence[Sequence[int]]) -> None:
    """A window that has been encoded before, and is no longer."""
    for _ in range(2):
        assert heard(cramped, [waves()[1]]) == [wanted[1]]
        cramped.ask(Sleep(1, 1))
        cramped.ask(Wake(None, 2))
    cramped.assert_empty()
