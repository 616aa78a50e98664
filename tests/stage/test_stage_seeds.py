"""Sampling with a seed: the same tokens whatever the steps look like."""

from __future__ import annotations

from typing import Any

import pytest

from tiny import Driven

SEEDED = {"temperature": 1.0, "seed": 11, "max_tokens": 20}
PROMPT = [(5 * i) % 90 + 3 for i in range(100)]  # longer than the cramped stage's step of 48


def sample(stage: Driven, seed: int, others: int = 0) -> list[int]:
    stage.clear()
    stage.submit("seeded", PROMPT, sampling={**SEEDED, "seed": seed})
    for index in range(others):
        stage.submit(f"other{index}", PROMPT[index : index + 40], sampling={**SEEDED, "seed": 100})
    stage.run()
    assert [end.finish for end in stage.endings("seeded")] == ["length"]
    stage.assert_empty()
    return stage.tokens("seeded")


@pytest.mark.parametrize("others", [0, 3])
def test_a_seed_gives_the_same_tokens_in_chunks_and_in_one_step(
    roomy: Driven, cramped: Driven, others: int
) -> None:
    """Upstream on CPU raises here: its generators cannot take a partial prefill's sample back."""
    assert sample(cramped, 11, others) == sample(roomy, 11)


def test_another_seed_gives_other_tokens(cramped: Driven) -> None:
    assert sample(cramped, 11) != sample(cramped, 12)


def test_requests_without_a_seed_run_beside(cramped: Driven) -> None:
    stage: Any = cramped
    stage.clear()
    stage.submit("seeded", PROMPT, sampling=SEEDED)
    stage.submit("free", PROMPT, sampling={"temperature": 1.0, "max_tokens": 20})
    stage.run()
    assert len(stage.tokens("free")) == 20
    stage.assert_empty()
