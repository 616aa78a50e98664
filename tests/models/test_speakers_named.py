"""Speakers in a configuration of Qwen3-Omni."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.errors import ModelUnavailableError
from antiphon.models.qwen3_omni.voices import speakers_of


def test_their_ids_by_name(tmp_path: Path) -> None:
    config = {"talker_config": {"speaker_id": {"Ethan": 3}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert speakers_of(tmp_path) == {"Ethan": 3}


@pytest.mark.parametrize("speakers", [{}, None, [], {"Ethan": None}])
def test_none_is_the_checkpoints_fault(tmp_path: Path, speakers: object) -> None:
    config = {"talker_config": {"speaker_id": speakers}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelUnavailableError, match="names no speakers"):
        speakers_of(tmp_path)
