"""Requests and replies: what is refused, and files that appear whole or not at all."""

from __future__ import annotations

import os
import wave
from pathlib import Path

import numpy as np
import pytest

from antiphon.errors import EmptyInputError, InvalidRequestError, OutputPathError
from antiphon.orchestrator.api import OmniRequest, Reply, Timings
from antiphon.orchestrator.files import check_output_path
from antiphon.orchestrator.wav import save_wav
from sample_pipeline import TOPOLOGY

WRONG = {
    "entry": ({"entry": "caht"}, "did you mean chat"),
    "modality": ({"modalities": ("text", "vidio")}, "does not give 'vidio'"),
    "stage": ({"sampling": {"thinkr": {}}}, "'thinkr'.*did you mean thinker"),
    "stage without sampling": ({"sampling": {"code2wav": {}}}, "samples nothing"),
    "stage not visited": (
        {"modalities": ("text",), "sampling": {"talker": {"seed": 1}}},
        "stage talker, which this request does not visit",
    ),
    "parameter": ({"sampling": {"thinker": {"max_token": 1}}}, "did you mean max_tokens"),
    "no tokens": ({"sampling": {"thinker": {"max_tokens": 0}}}, "is 0; give at least 1"),
    "temperature": ({"sampling": {"thinker": {"temperature": -0.1}}}, "temperature.*is -0.1"),
    "temperature type": ({"sampling": {"thinker": {"temperature": "hot"}}}, "is 'hot'"),
    "not a number": ({"sampling": {"thinker": {"temperature": float("nan")}}}, "finite"),
    "top_p": ({"sampling": {"thinker": {"top_p": 0}}}, "give more than 0 and at most 1"),
    "fraction": ({"sampling": {"thinker": {"max_tokens": 1.5}}}, "whole number"),
    "flag": ({"sampling": {"thinker": {"ignore_eos": 1}}}, "give true or false"),
    "ids": ({"sampling": {"thinker": {"stop_token_ids": [1, -2]}}}, "list of token ids"),
    "seed": ({"sampling": {"thinker": {"seed": 1 << 64}}}, "at most 63 bits"),
    "large id": ({"sampling": {"thinker": {"stop_token_ids": [1 << 64]}}}, "list of token ids"),
    "text type": ({"text": None}, "text: expected str, got null"),
    "no sampling of a stage": ({"sampling": {"thinker": None}}, "sampling is by stage, as in"),
    "sampling of no stage": (
        {"sampling": {"temperature": 0.5}},
        r"""sampling is by stage, as in \{"thinker": \{"temperature": 0.5\}\}; it is \{'temp""",
    ),
    "sampling of no stage, spoken": (
        {"entry": "speech", "sampling": [1]},
        'sampling is by stage, as in {"talker": ',
    ),
    "sampling without names": ({"sampling": {"thinker": {1: 2}}}, "sampling is by stage, as in"),
    "one modality": ({"modalities": "audio"}, "modalities: expected array"),
    "bytes that are no text": ({"text": "hi \udcff"}, "not valid Unicode"),
    "wait": ({"input_wait_timeout_s": -1}, "input_wait_timeout_s is -1"),
    "deadline type": ({"deadline_s": "5"}, "deadline_s: expected"),
    "deadline": ({"deadline_s": 0}, "deadline_s is 0"),
    "deadline for ever": ({"deadline_s": float("inf")}, "deadline_s is inf"),
    "role": ({"messages": [{"role": "robot", "content": "x"}]}, "message 0 has role 'robot'"),
    "message": ({"messages": [{"role": "user"}]}, "message 0 has no content"),
    "no message": ({"messages": ["hi"]}, "message 0 is of type str, not a dict"),
    "no messages": ({"messages": "hi"}, "messages is of type str; give a list of dicts"),
    "content in parts": (
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        r"message 0 has content of type list; entry chat takes text: .* the text as content$",
    ),
    "a picture": (
        {"messages": [{"role": "user", "content": "x", "image": b""}]},
        "message 0 has 'image', which is unknown; entry chat takes text:",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_request_is_refused(case: str) -> None:
    """C54: what would have no effect is refused with the nearest right name."""
    changes, message = WRONG[case]
    request = OmniRequest(**{"text": "hi", **changes})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=message):
        request.check(TOPOLOGY)


@pytest.mark.parametrize("name", ["x.mp3", "x.png", "x.v1"])
def test_sound_is_written_as_wav_alone(name: str, tmp_path: Path) -> None:
    with pytest.raises(OutputPathError, match=r"name a \.wav file"):
        reply(np.zeros(4, np.float32)).save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_good_request_names_its_path() -> None:
    sampling = {"thinker": {"max_tokens": 3, "temperature": 0, "stop_token_ids": [2]}}
    request = OmniRequest(text="hi", modalities=("text",), sampling=sampling)  # type: ignore[arg-type]
    assert [stage.name for stage in request.check(TOPOLOGY)] == ["thinker"]


@pytest.mark.parametrize(
    "request_",
    [
        OmniRequest(),
        OmniRequest(text=" \t\n"),
        OmniRequest(messages=[{"role": "user", "content": " "}]),
    ],
)
def test_nothing_to_answer(request_: OmniRequest) -> None:
    with pytest.raises(EmptyInputError):
        request_.check(TOPOLOGY)


def test_text_is_the_last_message() -> None:
    earlier = {"role": "system", "content": "be brief"}
    request = OmniRequest(text="hi", messages=[earlier])
    assert request.conversation() == [earlier, {"role": "user", "content": "hi"}]


def reply(audio: np.ndarray | None) -> Reply:
    return Reply("hi", audio, 24_000, "stop", Timings(total_s=1.0))


def test_saved_sound_is_16_bit_mono(tmp_path: Path) -> None:
    """Beyond ±1 it is clipped, not wrapped."""
    samples = np.array([0.0, 1.0, -1.0, 2.0, -2.0, 0.5], np.float32)
    path = reply(samples).save(tmp_path / "x.wav")
    with wave.open(str(path)) as sound:
        assert sound.getparams()[:4] == (1, 2, 24_000, 6)
        frames = np.frombuffer(sound.readframes(6), "<i2")
    assert frames.tolist() == [0, 32767, -32767, 32767, -32767, 16384]
    assert [file.name for file in tmp_path.iterdir()] == ["x.wav"]


def test_old_file_is_replaced_and_keeps_its_link(tmp_path: Path) -> None:
    (tmp_path / "real.wav").write_bytes(b"old")
    (tmp_path / "link.wav").symlink_to("real.wav")
    save_wav(tmp_path / "link.wav", np.zeros(4, np.float32), 8000)
    assert (tmp_path / "link.wav").is_symlink()
    assert (tmp_path / "real.wav").read_bytes()[:4] == b"RIFF"


def test_file_mode_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = save_wav(tmp_path / "x.wav", np.zeros(4, np.float32), 8000)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """A sample rate that the format cannot hold fails in the middle of the file."""
    (tmp_path / "x.wav").write_bytes(b"old")
    with pytest.raises(wave.Error):
        save_wav(tmp_path / "x.wav", np.zeros(4, np.float32), 0)
    assert [file.name for file in tmp_path.iterdir()] == ["x.wav"]
    assert (tmp_path / "x.wav").read_bytes() == b"old"


def test_reply_without_audio(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no audio"):
        reply(None).save(tmp_path / "x.wav")


@pytest.mark.parametrize("name", ["", "no/x.wav", "."])
def test_output_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputPathError):
        check_output_path(name)
    assert list(tmp_path.iterdir()) == []


def test_rtf() -> None:
    assert Timings(total_s=2.0, audio_s=4.0).rtf == 0.5
    assert Timings(total_s=2.0).rtf is None
