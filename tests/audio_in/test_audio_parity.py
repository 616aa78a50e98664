"""A thinker that hears answers as transformers' does, whatever scheduling did.

Token ids are equal, prompts' and answers'; hidden rows differ by summing in another order.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.signal import resample_poly

from antiphon.payload.adapters import INPUT_IDS, layer_output
from antiphon.pipeline.audio import AudioClip
from audio_stages import LAYERS, Heard, clip, hear, hear_samples, ids, submit
from qwen3_omni_oracle import Prompt, Tone, chat
from tiny import Driven
from tiny_adapters import SEEN

TOLERANCE = 1e-4
LOW, HIGH = Tone(1.3, 127.0), Tone(2.6, 291.0)  # 17 and 34 tokens
STAGES = ["roomy", "cramped", "overlapped", "cached"]


@pytest.fixture(params=STAGES)
def stage(request: pytest.FixtureRequest) -> Driven:
    found: Driven = request.getfixturevalue(request.param)
    found.clear()
    return found


def prompts(folder: str) -> list[Prompt]:
    """Two sounds, no sound, both in one prompt."""
    return [
        chat(folder, "hi", LOW, "go"),
        chat(folder, HIGH),
        chat(folder, "no sound"),
        chat(folder, LOW, "or", HIGH),
    ]


def check(stage: Driven, uid: str, heard: Heard) -> None:
    assert [output.error for output in stage.endings(uid)] == [None]
    assert stage.tokens(uid) == heard.text


def finish(stage: Driven) -> None:
    stage.run()
    stage.discard()
    stage.assert_empty()


def test_alone(stage: Driven, checkpoint: str) -> None:
    prompt = chat(checkpoint, "hi", LOW, "go")
    heard = hear(checkpoint, prompt)
    submit(stage, "r", prompt)
    assert list(stage.scheduler.requests["r"].prompt_token_ids) == heard.prompt
    finish(stage)
    check(stage, "r", heard)


def test_together(stage: Driven, checkpoint: str) -> None:
    """In the cramped stage clips are longer than a step, and requests lose their blocks."""
    given = prompts(checkpoint)
    for index, prompt in enumerate(given):
        submit(stage, f"r{index}", prompt, 50)
    finish(stage)
    for index, prompt in enumerate(given):
        check(stage, f"r{index}", hear(checkpoint, prompt, 50))


def test_another_sound_has_another_answer(roomy: Driven, checkpoint: str) -> None:
    """The negative control: what is compared above depends on the sound."""
    roomy.clear()
    prompt = chat(checkpoint, "hi", LOW, "go")
    other = Tone(LOW.seconds, 2 * LOW.hertz)
    submit(roomy, "r", prompt, audio=(clip(other),))
    finish(roomy)
    assert roomy.tokens("r") != hear(checkpoint, prompt).text
    check(roomy, "r", hear(checkpoint, chat(checkpoint, "hi", other, "go")))


def test_batches_are_preempted_in_the_cramped_stage(cramped: Driven, checkpoint: str) -> None:
    """Else the tests above show less than they say."""
    cramped.clear()
    for index, prompt in enumerate(prompts(checkpoint)):
        submit(cramped, f"r{index}", prompt, 50)
    seen: set[str] = set()

    def preempted() -> bool:
        seen.update(uid for uid, r in cramped.scheduler.requests.items() if r.num_preemptions)
        return not cramped.host.has_work

    cramped.run_until(preempted)
    finish(cramped)
    assert seen


@pytest.mark.parametrize("name", STAGES)
def test_rows_are_those_of_transformers(
    name: str, checkpoint: str, request: pytest.FixtureRequest
) -> None:
    """Ids, input embeddings and hidden states, at the sound's positions as elsewhere."""
    stage: Driven = request.getfixturevalue(name)
    stage.clear()
    given = prompts(checkpoint)
    for index, prompt in enumerate(given):
        submit(stage, f"r{index}", prompt, 50, edges=("layers",))
    finish(stage)
    for index, prompt in enumerate(given):
        heard, seen = hear(checkpoint, prompt, 50), SEEN["layers", f"r{index}"]
        computed = heard.prompt + heard.text[:-1]
        assert seen.positions == list(range(len(computed)))
        assert torch.cat([step.side[INPUT_IDS] for step in seen.steps]).tolist() == computed
        rows = [torch.cat([s.side[layer_output(k)] for s in seen.steps]) for k in LAYERS]
        for own, theirs in zip([*rows, seen.rows], heard.layers, strict=True):
            assert float((own - theirs).abs().max()) < TOLERANCE * float(theirs.abs().max())


def test_a_sound_that_was_heard_before_is_found(cached: Driven, checkpoint: str) -> None:
    """And another one behind the same words is not taken for it."""
    cached.clear()
    prompt = chat(checkpoint, HIGH, "again", system="a" * 40)
    submit(cached, "first", prompt)
    cached.run()
    submit(cached, "second", prompt)
    other = chat(checkpoint, Tone(HIGH.seconds, 77.0), "again", system="a" * 40)
    submit(cached, "other", other)
    finish(cached)
    begin = ids(checkpoint, prompt).index(505)
    assert cached.cached_tokens("second") > begin
    assert 0 < cached.cached_tokens("other") <= begin
    for uid, asked in (("first", prompt), ("second", prompt), ("other", other)):
        check(cached, uid, hear(checkpoint, asked))


def test_a_sound_is_heard_again_after_a_sleep(roomy: Driven, checkpoint: str) -> None:
    """Asleep the stage keeps no embedding, and it does not count on one afterwards."""
    from antiphon.stage.messages import Sleep, Wake

    roomy.clear()
    prompt = chat(checkpoint, "hi", LOW, "go")
    for uid in ("before", "after"):
        submit(roomy, uid, prompt)
        roomy.run()
        assert roomy.host.scheduler.encoder_cache_manager.cached
        roomy.ask(Sleep(1, 1))
        assert not roomy.host.scheduler.encoder_cache_manager.cached
        roomy.ask(Wake(None, 2))
        check(roomy, uid, hear(checkpoint, prompt))


@pytest.mark.parametrize("rate", [8000, 44100])
def test_other_rates_are_resampled(roomy: Driven, checkpoint: str, rate: int) -> None:
    """A file of 16 bits; the reference hears what scipy makes of the same samples."""
    roomy.clear()
    time = np.arange(int(1.1 * rate)) / rate
    sound = AudioClip.from_array((9000 * np.sin(2 * np.pi * 300 * time)).astype(np.int16), rate)
    at = resample_poly(sound.array(), 16000, rate).astype(np.float32)
    prompt = chat(checkpoint, "hi", LOW, "go")
    submit(roomy, "r", prompt, audio=(sound,))
    finish(roomy)
    check(roomy, "r", hear_samples(checkpoint, prompt.text, at))
