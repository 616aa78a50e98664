"""Engines of the `voice` pipeline, made once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from antiphon.models.voice import weights

if TYPE_CHECKING:
    from voice_engines import StockEngine

    from judge import Judge


@pytest.fixture(scope="session")
def talker() -> StockEngine:
    """The talker on stock vLLM, with its grammar."""
    from voice_engines import StockEngine

    from antiphon.models.voice.topology import TALKER

    return StockEngine(TALKER, str(weights.talker_checkpoint()))


@pytest.fixture(scope="session")
def code2wav() -> StockEngine:
    """The codec decoder on stock vLLM."""
    from voice_engines import StockEngine

    from antiphon.models.voice.topology import CODE2WAV

    return StockEngine(CODE2WAV, str(weights.code2wav_checkpoint()))


@pytest.fixture(scope="session")
def judge() -> Judge:
    """The recogniser that writes down what was said."""
    from judge import Judge

    return Judge()


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """The forty sentences that the voice is measured with; none was trained on."""
    text = (Path(__file__).parent / "sentences.txt").read_text()
    return [line for line in text.splitlines() if line]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the test's own, and no network."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ANTIPHON_CACHE_DIR", str(folder))
    monkeypatch.setenv("ANTIPHON_OFFLINE", "1")
    return folder
