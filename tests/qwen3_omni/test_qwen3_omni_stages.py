"""Thinker, talker and code2wav as real stages: all that they make is what transformers makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from antiphon.errors import InputTooLongError
from antiphon.models.qwen3_omni.tiny import write_tiny
from antiphon.stage.messages import Abort
from engine_pool import EnginePool
from qwen3_omni_cases import CASES, KINDS, SOUND, STREAM, WHOLE, Lines, ask, check
from qwen3_omni_oracle import generate, late_code
from qwen3_omni_stages import Line, talker_spec, thinker_spec, windowed
from tiny import Driven

EDGES = pytest.mark.parametrize("edges", [STREAM, WHOLE], ids=["stream", "full"])


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


def test_what_is_too_long_ends_alone(lines: Lines, checkpoint: str) -> None:
    case = CASES[0]
    line = lines.line("roomy")
    oracle = case.oracle(checkpoint)
    line.ask("long", [*oracle.prompt, *[7] * 512], case.text_tokens, case.frames)
    (uid,) = ask(line, checkpoint, [case], STREAM)
    line.run()
    (end,) = line.stages[0].endings("long")
    assert end.error is not None
    assert end.error.code == InputTooLongError.code
    assert line.stages[0].tokens("long") == []
    check(line, uid, checkpoint, oracle, STREAM)
    for stage in line.stages[1:]:  # as the orchestrator does it
        stage.host.handle(Abort(["long"], 1))
    line.run()
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


def test_a_written_reply_ends_by_itself(
    engines: EnginePool, checkpoint: str, tmp_path: Path
) -> None:
    """At the id that ends a turn, also where no file of the checkpoint names it as the end."""
    case = CASES[1]
    oracle = case.oracle(checkpoint)
    end = max(set(oracle.text), key=oracle.text.index)  # a token that comes late
    for file in Path(checkpoint).iterdir():
        if file.name not in ("config.json", "generation_config.json"):
            (tmp_path / file.name).symlink_to(file)
    config = json.loads((Path(checkpoint) / "config.json").read_text())
    config["im_end_token_id"] = end
    config["thinker_config"]["text_config"]["eos_token_id"] = None
    (tmp_path / "config.json").write_text(json.dumps(config))
    thinker = engines.stage(thinker_spec("thinker-ending", str(tmp_path)))
    thinker.submit("r", oracle.prompt, sampling={"max_tokens": 100, "ignore_eos": False})
    thinker.run()
    assert thinker.tokens("r") == oracle.text[: oracle.text.index(end) + 1]
    assert [ending.finish for ending in thinker.endings("r")] == ["stop"]


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


@pytest.fixture(scope="module")
def cached_thinker(engines: EnginePool, checkpoint: str) -> Driven:
    spec = thinker_spec("thinker-cached", checkpoint, enable_prefix_caching=True)
    stage: Driven = engines.stage(spec)
    return stage


@EDGES
def test_the_same_question_twice_with_prefix_caching(
    cached_thinker: Driven, lines: Lines, checkpoint: str, edges: tuple[str, str]
) -> None:
    """A thinker that is heard computes every row; one that only writes finds its prompt cached."""
    thinker = cached_thinker
    line = Line([thinker, *lines.line("roomy").stages[1:]])
    case = CASES[2]
    oracle = case.oracle(checkpoint)
    thinker.submit("silent", oracle.prompt, sampling={"max_tokens": case.text_tokens})
    line.run()
    for uid in ("r0", "r1"):
        line.ask(uid, oracle.prompt, case.text_tokens, case.frames, edges=edges)
        line.run()
        check(line, uid, checkpoint, oracle, edges)
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
