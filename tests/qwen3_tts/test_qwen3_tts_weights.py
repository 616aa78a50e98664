"""Weights that are read again; checkpoints that lack one are in test_qwen3_tts_loading.py."""

from __future__ import annotations

from typing import Any

from loaded_weights import assert_reloads


def test_the_talkers_weights_come_back(talker: Any) -> None:
    assert_reloads(talker)


def test_the_codecs_weights_come_back(code2wav: Any) -> None:
    assert_reloads(code2wav)
