"""Audio that a stage cannot take: a typed error of that request, before it is part of any step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from antiphon.errors import error_codes
from antiphon.pipeline.audio import MAX_CLIPS, AudioClip
from antiphon.upstream.audio import AudioProcessor
from audio_stages import clip, hear, spec, submit
from engine_pool import EnginePool
from qwen3_omni_oracle import Tone, chat
from tiny import Driven

SOUND = clip(Tone())  # 17 tokens
PAD = 505


def long(seconds: float) -> AudioClip:
    return AudioClip.from_array(np.zeros(int(seconds * 16000), np.int16), 16000)


# case: ids, clips, error, what its message says
WRONG: dict[str, tuple[list[int], tuple[AudioClip, ...], str, str]] = {
    "too many clips": (
        [7, *[PAD, 7] * (MAX_CLIPS + 1)],
        (SOUND,) * (MAX_CLIPS + 1),
        "InvalidRequestError",
        "at most 16 may be given",
    ),
    "no place": ([7, 8, 9], (SOUND,), "AdapterError", "no place for each of its 1 clips"),
    "one place for two": ([7, PAD, 9], (SOUND, SOUND), "AdapterError", "its 2 clips"),
    "two places for one": ([7, PAD, PAD, 9], (SOUND,), "AdapterError", "more places"),
    "a clip at the end": ([7, PAD], (SOUND,), "AdapterError", "followed by another one or by the"),
    "clips side by side": (
        [7, PAD, PAD, 9],
        (SOUND, SOUND),
        "AdapterError",
        "put a token between them",
    ),
    "no such id": ([7, PAD, 512], (SOUND,), "InvalidRequestError", "between 0 and 511"),
    "long prompt": ([7, PAD, 9], (long(40),), "InputTooLongError", "the prompt takes 522 tokens"),
    "many places": (
        [7, *[PAD, 7] * 15],
        (long(3),) * 15,
        "InputTooLongError",
        "shorten it",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_bad_request_ends_alone(roomy: Driven, checkpoint: str, case: str) -> None:
    ids, clips, error, message = WRONG[case]
    roomy.clear()
    prompt = chat(checkpoint, "hi", Tone(), "go")
    submit(roomy, "good", prompt)
    roomy.submit("bad", ids, audio=clips)
    roomy.run()
    (end,) = roomy.endings("bad")
    assert end.error is not None
    assert error_codes()[end.error.code].__name__ == error
    assert message in end.error.message
    assert roomy.tokens("good") == hear(checkpoint, prompt).text
    roomy.assert_empty()


def test_a_clip_that_the_encoder_cannot_take_at_a_time(
    engines: EnginePool, checkpoint: str
) -> None:
    """Its cache holds a step's tokens, or what upstream makes of the processor's 30 s."""
    stage = engines.stage(
        spec("small-steps", checkpoint, max_model_len=1024, max_num_batched_tokens=64)
    )
    stage.submit("long", [7, PAD, 9], audio=(long(60),))
    (end,) = stage.endings("long")
    assert end.error.code == "input_too_long"
    assert "takes 780 tokens; the stage takes 750 at a time" in end.error.message
    stage.submit("most", [7, PAD, 9], audio=(long(57),), sampling={"max_tokens": 1})
    stage.run()
    assert stage.endings("most")[0].finish == "length"
    stage.assert_empty()


@pytest.mark.parametrize(
    ("ids", "given", "code"),
    [
        ([7, PAD, 9], {}, "invalid_parameter"),
        ([7, PAD, 9], {"session": True}, "invalid_parameter"),
    ],
)
def test_a_stage_without_ears(
    deaf: Driven, ids: list[int], given: dict[str, Any], code: str
) -> None:
    deaf.clear()
    deaf.submit("r", ids, audio=(SOUND,), **given)
    (end,) = deaf.endings("r")
    assert end.error is not None
    assert end.error.code == code
    assert "takes no audio" in end.error.message
    deaf.assert_empty()


def test_a_session_hears_nothing(roomy: Driven) -> None:
    roomy.clear()
    roomy.submit("r", [7, PAD, 9], audio=(SOUND,), session=True)
    (end,) = roomy.endings("r")
    assert end.error is not None
    assert end.error.message == "a session takes no audio; make requests"
    roomy.assert_empty()


def test_the_shortest_clip_and_one_that_is_aborted(roomy: Driven, checkpoint: str) -> None:
    roomy.clear()
    prompt = chat(checkpoint, "hi", Tone(0.1), "go")
    submit(roomy, "short", prompt)
    submit(roomy, "gone", prompt, 200)
    roomy.host.step()
    roomy.abort("gone")
    roomy.run()
    assert roomy.tokens("short") == hear(checkpoint, prompt).text
    assert not roomy.host.scheduler.encoder_cache_manager.request_cached_ids
    roomy.assert_empty()


def test_a_failed_step_leaves_no_sound_behind(
    roomy: Driven, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the scheduler took for heard has not been: the next request hears it itself.

    A prompt that ends with a clip makes upstream's step raise, if it gets that far.
    """
    roomy.clear()
    prompt = chat(checkpoint, "hi", Tone(1.7, 333.0), "go")
    with monkeypatch.context() as patch:
        patch.setattr(AudioProcessor, "_check_places", lambda *_: None)
        submit(roomy, "with", prompt)
        roomy.submit("bad", [7, PAD], audio=(SOUND,))
        roomy.run()
    for uid in ("with", "bad"):
        (end,) = roomy.endings(uid)
        assert end.error is not None
        assert end.error.code == "stage_step"
    submit(roomy, "after", prompt)
    roomy.run()
    assert roomy.tokens("after") == hear(checkpoint, prompt).text
    roomy.assert_empty()
