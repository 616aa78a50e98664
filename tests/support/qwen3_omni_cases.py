"""Questions to Qwen3-Omni's stages, what transformers makes of them, and the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine_pool import EnginePool
from qwen3_omni_oracle import Oracle, Prompt, chat, generate
from qwen3_omni_stages import Line, code2wav_spec, talker_spec, thinker_spec, windowed
from tiny import Driven

STREAM, WHOLE = ("speak", "codes"), ("speak-whole", "codes-whole")
SOUND = 1e-5  # most that samples may differ: waves are decoded in batches of other sizes

# 8 blocks of 32 tokens, one of which is upstream's: a batch is preempted.
CRAMPED: dict[str, Any] = {"blocks": 8, "max_model_len": 192, "max_num_batched_tokens": 48}


@dataclass(frozen=True)
class Case:
    """A question, and how much is said."""

    text: str
    text_tokens: int
    frames: int

    def prompt(self, folder: str) -> Prompt:
        return chat(folder, self.text)

    def oracle(self, folder: str) -> Oracle:
        """transformers makes no frame of the last token: one more, to have this many frames."""
        return generate(folder, self.prompt(folder), self.text_tokens, self.frames + 1)


CASES = (
    Case("hello", 24, 33),
    Case("what is it that you see there?", 40, 40),
    Case("a long question, of many words that all are words, and more words", 50, 64),
    Case("and a reply of few tokens that is spoken long", 3, 48),
)
KINDS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "cramped": CRAMPED,
    "cramped-overlapped": {**CRAMPED, "async_scheduling": True},
}


class Lines:
    """Lines of stages by kind; engines are built when they are first used."""

    def __init__(self, engines: EnginePool, folder: str, thinker: Driven) -> None:
        self._engines = engines
        self._folder = folder
        self._thinkers = {"roomy": thinker}
        self._talkers: dict[str, Driven] = {}
        self._vocoder: Driven | None = None

    def line(self, kind: str) -> Line:
        if self._vocoder is None:
            self._vocoder = self._engines.stage(code2wav_spec("code2wav", self._folder))
        stage, over = self._engines.stage, KINDS[kind]
        if kind not in self._thinkers:
            self._thinkers[kind] = stage(thinker_spec(f"thinker-{kind}", self._folder, **over))
        if kind not in self._talkers:
            self._talkers[kind] = stage(talker_spec(f"talker-{kind}", self._folder, **over))
        return Line([self._thinkers[kind], self._talkers[kind], self._vocoder])


def ask(line: Line, folder: str, cases: Sequence[Case], edges: tuple[str, str]) -> list[str]:
    """Put these questions to a line; the ids of the requests."""
    uids = [f"r{index}" for index in range(len(cases))]
    for uid, case in zip(uids, cases, strict=True):
        prompt = case.oracle(folder).prompt
        line.ask(uid, prompt, case.text_tokens, case.frames, edges=edges)
    return uids


def check(line: Line, uid: str, folder: str, oracle: Oracle, edges: tuple[str, str]) -> None:
    """All that a request has brought is what transformers makes."""
    thinker, talker, _ = line.stages
    assert thinker.tokens(uid) == oracle.text
    assert talker.tokens(uid) == oracle.talker[: len(oracle.codes)]
    assert torch.equal(line.frames(uid), oracle.codes)
    expected = oracle.waveform if edges == WHOLE else windowed(folder, oracle.codes)
    heard = line.waveform(uid)
    assert heard.shape == oracle.waveform.shape
    assert float((heard - expected).abs().max()) < SOUND
