"""How the stages choose: by lot, with a penalty, and in half precision."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from antiphon.models.qwen3_omni.tiny import CODE_GROUPS, CODEBOOK
from engine_pool import EnginePool
from qwen3_omni_cases import CASES, STREAM, Lines, ask, check
from qwen3_omni_oracle import generate
from qwen3_omni_stages import Line, code2wav_spec, talker_spec, thinker_spec

LOTS = {"temperature": 0.9, "top_k": 20, "seed": 7, "ignore_eos": True}


def test_seeded_speech_depends_on_its_seed_alone(lines: Lines, checkpoint: str) -> None:
    """Not on batch-mates, chunks of prefill or preemption: also the codes behind the first."""
    made = []
    for kind, batch in (("roomy", 1), ("roomy", 4), ("cramped", 4)):
        line = lines.line(kind)
        for index, case in enumerate(CASES[:batch]):
            prompt = case.oracle(checkpoint).prompt
            line.ask(f"r{index}", prompt, case.text_tokens, case.frames, talker=LOTS)
        line.run()
        made.append(line.frames("r0"))
    assert made[0].shape == (CASES[0].frames, CODE_GROUPS)
    assert all(torch.equal(frames, made[0]) for frames in made)
    assert not torch.equal(made[0], CASES[0].oracle(checkpoint).codes)


@pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`:UserWarning")
@pytest.mark.parametrize("batch", [1, 4])
def test_a_repetition_penalty_counts_codes_alone(lines: Lines, checkpoint: str, batch: int) -> None:
    """As in transformers: not the ids that stand for a prompt's rows, nor what was in their place
    before.
    """
    line = lines.line("roomy")
    ask(line, checkpoint, CASES[:1] * 4, STREAM)  # short prompts: their codes lie in longer ones
    line.run()
    line = lines.line("roomy")
    cases = CASES[-batch:]
    for index, case in enumerate(cases):
        prompt = case.oracle(checkpoint).prompt
        limits = case.text_tokens, case.frames
        line.ask(f"r{index}", prompt, *limits, talker={"repetition_penalty": 1.3})
    line.run()
    for index, case in enumerate(cases):
        prompt, frames = case.prompt(checkpoint), case.frames + 1
        oracle = generate(checkpoint, prompt, case.text_tokens, frames, penalty=1.3)
        assert oracle.talker != case.oracle(checkpoint).talker
        check(line, f"r{index}", checkpoint, oracle, STREAM)


# --- half precision ---------------------------------------------------------------------------


def first_difference(made: Sequence[int], expected: Sequence[int]) -> int | None:
    """Where two sequences part; None if they do not, as far as both go."""
    pairs = enumerate(zip(made, expected, strict=False))
    return next((place for place, (one, other) in pairs if one != other), None)


def test_in_bfloat16_all_is_finite(
    engines: EnginePool, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other kernels round otherwise, so that choices part from transformers' in float32 somewhere;
    where is told and not judged. Rows cross the edges in bfloat16.
    """
    half = {"dtype": "bfloat16"}
    line = Line(
        [
            engines.stage(thinker_spec("thinker-half", checkpoint, **half)),
            engines.stage(talker_spec("talker-half", checkpoint, **half)),
            engines.stage(code2wav_spec("code2wav-half", checkpoint, **half)),
        ]
    )
    uids = ask(line, checkpoint, CASES, STREAM)
    line.run()
    assert line.errors() == []
    for uid, case in zip(uids, CASES, strict=True):
        oracle = case.oracle(checkpoint)
        text = first_difference(line.stages[0].tokens(uid), oracle.text)
        codes = first_difference(line.stages[1].tokens(uid), oracle.talker)
        with capsys.disabled():
            print(
                f" [{case.text!r}: first other token of text {text} of {len(oracle.text)},"
                f" of speech {codes} of {len(oracle.talker)}]"
            )
        frames = [frame for frame in line.frames(uid).tolist() if frame[0] < CODEBOOK]
        heard = line.waveform(uid)
        assert heard.dtype == torch.float32
        assert heard.isfinite().all()
        assert 0 < float(heard.abs().max()) <= 1
        assert len(heard) == len(oracle.waveform) or len(frames) < case.frames
    line.assert_empty()
