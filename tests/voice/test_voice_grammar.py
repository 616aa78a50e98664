"""The grammar as vLLM runs it: on the logits of a batch, and inside an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from voice_engines import StockEngine

from antiphon.models.voice import phonemes, weights
from antiphon.models.voice.grammar import SWITCH, TalkerGrammar
from antiphon.models.voice.topology import TALKER
from antiphon.models.voice.vocabulary import EOS, FIRST_CODE, VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPT = [178, 184, 50, 4, 0, 179]
ON = SamplingParams(max_tokens=1024, extra_args={SWITCH: True})
OFF = SamplingParams(max_tokens=1024)


def processor(added: Sequence[tuple[SamplingParams, list[int]]]) -> TalkerGrammar:
    """A processor with these (params, output) as its batch."""
    config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=1024))
    grammar = TalkerGrammar(config, torch.device("cpu"), False)  # type: ignore[arg-type]
    rows = [(row, params, PROMPT, output) for row, (params, output) in enumerate(added)]
    grammar.update_state(BatchUpdate(len(rows), removed=[], added=rows, moved=[]))
    return grammar


def logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))


def test_only_codes_and_the_next_id_are_left() -> None:
    """Every other phoneme is impossible; codes keep their scores."""
    before = logits(1)
    after = processor([(ON, [184, 300])]).apply(before.clone())
    assert torch.equal(after[0, FIRST_CODE:], before[0, FIRST_CODE:])
    assert after[0, 50] == before[0, :FIRST_CODE].max()
    assert torch.isneginf(after[0, :FIRST_CODE]).sum() == FIRST_CODE - 1


def test_first_step_allows_one_id() -> None:
    """Before the first id nothing else is possible."""
    after = processor([(ON, [])]).apply(logits(1))
    assert torch.isfinite(after[0]).nonzero().flatten().tolist() == [184]


def test_other_requests_are_untouched() -> None:
    """A request without the grammar keeps its logits, beside one with it."""
    before = logits(3)
    after = processor([(OFF, []), (ON, [184]), (OFF, [])]).apply(before.clone())
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert torch.isneginf(after[1, :FIRST_CODE]).all()


def test_batch_gives_what_each_request_gives_alone() -> None:
    """The rows of a batch do not see each other."""
    outputs = [
        [],
        [184],
        [184, 300],
        [184, 300, 50, *[300] * 16],
        [184, 300, 50, 300, 4, 300, 0, 300],
    ]
    before = logits(len(outputs))
    together = processor([(ON, output) for output in outputs]).apply(before.clone())
    for row, output in enumerate(outputs):
        alone = processor([(ON, output)]).apply(before[row : row + 1].clone())
        assert torch.equal(together[row], alone[0])


def test_swapped_rows_keep_their_readings() -> None:
    """Upstream reorders its batch; a reading follows its request."""
    before = logits(2)
    grammar = processor([(ON, [184]), (ON, [184, 300, 50])])
    straight = grammar.apply(before.clone())
    grammar.update_state(
        BatchUpdate(2, removed=[], added=[], moved=[(0, 1, MoveDirectionality.SWAP)])
    )
    swapped = grammar.apply(before.flip(0).clone())
    assert torch.equal(swapped, straight.flip(0))


def test_removed_request_is_forgotten() -> None:
    """Nothing is kept of a request that left the batch."""
    grammar = processor([(ON, [184])])
    grammar.update_state(BatchUpdate(0, removed=[0], added=[], moved=[]))
    before = logits(1)
    assert torch.equal(grammar.apply(before.clone()), before)


def test_switch_must_be_a_bool() -> None:
    """A wrong parameter is refused before the engine sees it."""
    with pytest.raises(ValueError, match="true or false"):
        TalkerGrammar.validate_params(SamplingParams(extra_args={SWITCH: "yes"}))


def test_engine_repeats_each_prompt_exactly(talker: StockEngine) -> None:
    """In the engine, alone and in a batch: ids repeated in order, EOS at the end."""
    (one,) = phonemes.prompts("The clock stopped.")
    (two,) = phonemes.prompts("Snow covered the roof.")
    for prompts in ([one], [one, two, one]):
        for prompt, result in zip(prompts, talker.run(prompts), strict=True):
            repeated = [token for token in result.tokens if token < FIRST_CODE]
            assert repeated == [*prompt[1:-1], EOS]
            assert result.finish == "stop"


def test_preempted_requests_go_on_where_they_were(talker: StockEngine) -> None:
    """A pool too small for the batch: requests are preempted, resumed, and read the same."""
    prompts = [
        prompt for text in ("A cat.", "Two dogs.", "The end.") for prompt in phonemes.prompts(text)
    ]
    small = StockEngine(
        TALKER,
        str(weights.talker_checkpoint()),
        max_model_len=128,
        block_size=32,
        num_gpu_blocks_override=6,
    )
    squeezed = small.run(prompts, max_tokens=110)
    assert sum(result.preemptions for result in squeezed) > 0
    free = talker.run(prompts, max_tokens=110)
    assert [result.tokens for result in squeezed] == [result.tokens for result in free]
