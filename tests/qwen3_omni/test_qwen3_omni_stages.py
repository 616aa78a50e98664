"""Thinker, talker and code2wav as real stages: all that they make is what transformers makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from antiphon.models.qwen3_omni.tiny import CODE_GROUPS, write_tiny
from antiphon.stage.messages import Abort
from engine_pool import EnginePool
from qwen3_omni_oracle import Oracle, Prompt, chat, generate, late_code
from qwen3_omni_stages import Line, code2wav_spec, talker_spec, thinker_spec, windowed
from tiny import Driven

STREAM, WHOLE = ("speak", "codes"), ("speak-whole", "codes-whole")
EDGES = pytest.mark.parametrize("edges", [STREAM, WHOLE], ids=["stream", "full"])
SOUND = 1e-5  # most that samples may differ: waves are decoded in batches of other sizes

# 8 blocks of 32 tokens, one of which is upstream's: a batch is preempted.
CRAMPED = {"blocks": 8, "max_model_len": 192, "max_num_batched_tokens": 48}


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


@pytest.fixture(scope="session", autouse=True)
def oracles(checkpoint: str) -> None:
    """Answers of transformers take longer than any test may; they are kept."""
    for case in CASES:
        case.oracle(checkpoint)


KINDS = {
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


@pytest.fixture(scope="session")
def lines(engines: EnginePool, checkpoint: str, thinker: Driven) -> Lines:
    return Lines(engines, checkpoint, thinker)


def ask(line: Line, folder: str, cases: Sequence[Case], edges: tuple[str, str]) -> list[str]:
    uids = [f"r{index}" for index in range(len(cases))]
    for uid, case in zip(uids, cases, strict=True):
        prompt = case.oracle(folder).prompt
        line.ask(uid, prompt, case.text_tokens, case.frames, edges=edges)
    return uids


def check(line: Line, uid: str, folder: str, oracle: Oracle, edges: tuple[str, str]) -> None:
    thinker, talker, _ = line.stages
    assert thinker.tokens(uid) == oracle.text
    assert talker.tokens(uid) == oracle.talker[: len(oracle.codes)]
    assert torch.equal(line.frames(uid), oracle.codes)
    expected = oracle.waveform if edges == WHOLE else windowed(folder, oracle.codes)
    heard = line.waveform(uid)
    assert heard.shape == oracle.waveform.shape
    assert float((heard - expected).abs().max()) < SOUND


@EDGES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 4])
def test_all_is_what_transformers_makes(
    lines: Lines, checkpoint: str, kind: str, batch: int, edges: tuple[str, str]
) -> None:
    """In chunked prefills and with preemption of both (cramped), with overlapping steps."""
    line = lines.line(kind)
    cases = CASES[-batch:]
    uids = ask(line, checkpoint, cases, edges)
    line.run()
    assert line.errors() == []
    for uid, case in zip(uids, cases, strict=True):
        check(line, uid, checkpoint, case.oracle(checkpoint), edges)
    if kind.startswith("cramped") and batch > 1:
        assert line.preempted[0]
        assert line.preempted[1] or edges == WHOLE  # replies end one after the other there
    line.assert_empty()


def test_a_stream_is_heard_while_the_thinker_writes(lines: Lines, checkpoint: str) -> None:
    """The first sound is there before the last token."""
    line = lines.line("roomy")
    (uid,) = ask(line, checkpoint, CASES[2:3], STREAM)
    while not line.chunks(uid):
        line.step()
    assert len(line.stages[0].tokens(uid)) < CASES[2].text_tokens
    line.run()
    assert len(line.chunks(uid)) == 5  # 4 + 8 + 16 + 25 + 11 frames
    line.assert_empty()


def test_rows_that_are_one_place_off_are_heard(lines: Lines, checkpoint: str) -> None:
    """The negative control: it would show if a row came a step early or late."""
    line = lines.line("roomy")
    (uid,) = ask(line, checkpoint, CASES[1:2], ("speak-shifted", "codes"))
    line.run()
    oracle = CASES[1].oracle(checkpoint)
    assert line.stages[0].tokens(uid) == oracle.text
    assert line.stages[1].tokens(uid)[:2] == oracle.talker[:2]
    assert line.stages[1].tokens(uid) != oracle.talker[:-1]


def test_the_speaker_matters(lines: Lines, checkpoint: str) -> None:
    case = CASES[1]
    line = lines.line("roomy")
    oracle = generate(
        checkpoint, case.prompt(checkpoint), case.text_tokens, case.frames + 1, "chelsie"
    )
    for uid, name in (("r0", "Chelsie"), ("r1", "ethan")):
        line.ask(uid, oracle.prompt, case.text_tokens, case.frames, params={"speaker": name})
    line.run()
    check(line, "r0", checkpoint, oracle, STREAM)
    check(line, "r1", checkpoint, case.oracle(checkpoint), STREAM)
    assert line.stages[1].tokens("r0") != line.stages[1].tokens("r1")


def test_an_unknown_speaker_ends_its_own_request_alone(lines: Lines, checkpoint: str) -> None:
    case = CASES[0]
    line = lines.line("roomy")
    oracle = case.oracle(checkpoint)
    line.ask("bad", oracle.prompt, case.text_tokens, case.frames, params={"speaker": "nobody"})
    (uid,) = ask(line, checkpoint, [case], STREAM)
    for _ in range(1000):
        line.step()
        if line.stages[1].endings("bad"):
            break
    (end,) = line.stages[1].endings("bad")
    assert end.error is not None
    assert end.error.code == "invalid_parameter"
    for stage in line.stages:  # as the orchestrator does it
        stage.host.handle(Abort(["bad"], 1))
    line.run()
    check(line, uid, checkpoint, oracle, STREAM)
    line.assert_empty()


@EDGES
def test_speech_ends_by_itself(
    engines: EnginePool,
    lines: Lines,
    checkpoint: str,
    tmp_path_factory: pytest.TempPathFactory,
    edges: tuple[str, str],
) -> None:
    """At the id that the checkpoint's configuration says; its frame is not spoken."""
    case = CASES[1]
    folder = tmp_path_factory.getbasetemp() / "qwen3-omni-ending"
    if not folder.exists():
        write_tiny(
            folder, codec_eos=late_code(checkpoint, case.prompt(checkpoint), case.text_tokens, 41)
        )
    ending = engines.stage(talker_spec(f"talker-ending-{edges[0]}", str(folder)))
    thinker, _, vocoder = lines.line("roomy").stages
    line = Line([thinker, ending, vocoder])
    oracle = generate(str(folder), case.prompt(str(folder)), case.text_tokens, 200)
    assert 10 < len(oracle.talker) < 200
    line.ask("r", oracle.prompt, case.text_tokens, 200, edges=edges)
    line.run()
    assert ending.tokens("r") == oracle.talker
    assert [end.finish for end in ending.endings("r")] == ["stop"]
    assert torch.equal(line.frames("r")[:-1], oracle.codes)
    heard = line.waveform("r")
    expected = oracle.waveform if edges == WHOLE else windowed(checkpoint, oracle.codes)
    assert heard.shape == oracle.waveform.shape
    assert float((heard - expected).abs().max()) < SOUND
    line.assert_empty()


@EDGES
def test_a_reply_of_one_token_is_silent(
    lines: Lines, checkpoint: str, edges: tuple[str, str]
) -> None:
    line = lines.line("roomy")
    oracle = CASES[0].oracle(checkpoint)
    line.ask("r", oracle.prompt, 1, 30, edges=edges)
    line.run()
    assert line.stages[0].tokens("r") == oracle.text[:1]
    assert line.stages[1].tokens("r") == []
    assert [[end.finish for end in stage.endings("r")] for stage in line.stages[1:]] == [
        ["stop"],
        ["stop"],
    ]
    assert not len(line.waveform("r"))
    line.assert_empty()


def test_the_same_question_twice_with_prefix_caching(
    engines: EnginePool, lines: Lines, checkpoint: str
) -> None:
    """A thinker that is heard computes every row; one that only writes finds its prompt cached."""
    spec = thinker_spec("thinker-cached", checkpoint, enable_prefix_caching=True)
    thinker = engines.stage(spec)
    line = Line([thinker, *lines.line("roomy").stages[1:]])
    case = CASES[2]
    oracle = case.oracle(checkpoint)
    thinker.submit("silent", oracle.prompt, sampling={"max_tokens": case.text_tokens})
    line.run()
    for uid in ("r0", "r1"):
        line.ask(uid, oracle.prompt, case.text_tokens, case.frames)
        line.run()
        check(line, uid, checkpoint, oracle, STREAM)
        assert thinker.cached_tokens(uid) == 0
    thinker.submit("silent again", oracle.prompt, sampling={"max_tokens": case.text_tokens})
    line.run()
    assert thinker.tokens("silent") == thinker.tokens("silent again") == oracle.text
    assert thinker.cached_tokens("silent again") > 0
    line.assert_empty()


@pytest.mark.parametrize("steps", [1, 4, 9, 17, 30])
def test_an_abort_leaves_nothing(lines: Lines, checkpoint: str, steps: int) -> None:
    line = lines.line("cramped")
    uids = ask(line, checkpoint, CASES, STREAM)
    for _ in range(steps):
        line.step()
    for stage in line.stages:
        stage.host.handle(Abort(uids[:2], 1))
    line.run()
    for uid, case in list(zip(uids, CASES, strict=True))[2:]:
        check(line, uid, checkpoint, case.oracle(checkpoint), STREAM)
    line.assert_empty()


# --- choices by lot ---------------------------------------------------------------------------

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
