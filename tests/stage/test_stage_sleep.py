"""Sleep and wake, on a stage whose worker really gives memory back (C55, C123)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from safetensors.torch import load_file, save_file

from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import ErrorInfo
from antiphon.stage.messages import (
    Abort,
    Aborted,
    Acknowledged,
    Interrupt,
    Interrupted,
    Sleep,
    Submit,
    Update,
    Wake,
)
from engine_pool import EnginePool
from tiny import Driven, tiny_spec

PROMPT = [(3 * j) % 90 + 1 for j in range(70)]
ALL = ["kv_cache", "weights"]


@pytest.fixture(scope="module")
def folder(model_a: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of this module's own, which tests damage and put right."""
    copy = tmp_path_factory.mktemp("sleeper") / "model"
    shutil.copytree(model_a, copy)
    return copy


@pytest.fixture(scope="module")
def sleeper(engines: EnginePool, folder: Path) -> Driven:
    spec = tiny_spec(
        "sleeper",
        str(folder),
        "sleep_tests",
        enable_prefix_caching=True,
    )
    args = spec.engine_args | {"worker_cls": "sleeping_worker.SleepingWorker"}
    driven = engines.stage(msgspec.structs.replace(spec, engine_args=args))
    assert isinstance(driven, Driven)
    return driven


@pytest.fixture
def stage(sleeper: Driven) -> Iterator[Driven]:
    sleeper.clear()
    yield sleeper
    wake(sleeper)
    sleeper.assert_empty()


@pytest.fixture
def lost(folder: Path) -> Iterator[Path]:
    """The checkpoint's weights; whatever is done to them, they are put right in the end."""
    (file,) = folder.glob("*.safetensors")
    whole = file.read_bytes()
    yield file
    file.write_bytes(whole)


def sleep(stage: Driven, level: int = 1) -> Acknowledged:
    answer = stage.ask(Sleep(level, 1))
    assert isinstance(answer, Acknowledged)
    return answer


def wake(stage: Driven, *tags: str) -> Acknowledged:
    before = len(stage.events)
    stage.host.handle(Wake(list(tags) or None, 2))
    (answer,) = [e for e in stage.events[before:] if isinstance(e, Acknowledged) and e.token == 2]
    return answer


def answers(stage: Driven) -> dict[int, Acknowledged]:
    """By token."""
    return {e.token: e for e in stage.events if isinstance(e, Acknowledged)}


def ids(stage: Driven, uid: str) -> list[int]:
    stage.submit(uid, PROMPT)
    stage.run()
    return stage.tokens(uid)


def sizes(stage: Driven) -> dict[str, int]:
    """Bytes, by what they hold."""
    (found,) = stage.host._engine.call_workers("sizes")
    return dict(found)


# --- what is given back, and taken again ----------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2])
def test_a_stage_that_slept_answers_as_before(stage: Driven, level: int) -> None:
    """C55, C123: the same ids; the bytes are told; nothing of the prefix cache is left."""
    before = ids(stage, "a")
    assert ids(stage, "b") == before
    assert stage.cached_tokens("b") == 64
    assert sleep(stage, level).bytes_freed == sum(sizes(stage).values()) > 0
    assert wake(stage) == Acknowledged(2, 0)
    assert ids(stage, "c") == before
    assert stage.cached_tokens("c") == 0


def test_what_lies_in_memory_that_sleeps_is_lost(stage: Driven) -> None:
    """The control: weights of level 2 that are not read again would be noticed."""
    before = ids(stage, "a")
    stage.host._engine.call_workers("sleep", 2)
    stage.host._engine.call_workers("wake_up")
    assert ids(stage, "b") != before
    stage.host._engine.call_workers("reload_weights")
    stage.scheduler.reset_prefix_cache()
    assert ids(stage, "c") == before


def test_commands_in_any_number_do_no_harm(stage: Driven) -> None:
    before = ids(stage, "a")
    assert wake(stage) == Acknowledged(2, 0)  # awake already
    assert sleep(stage).bytes_freed > 0
    assert sleep(stage) == Acknowledged(1, 0)  # nothing was left to free
    for _ in range(2):
        assert wake(stage) == Acknowledged(2, 0)
    assert ids(stage, "b") == before


@pytest.mark.parametrize("first", ALL)
def test_memory_is_woken_part_by_part(stage: Driven, first: str) -> None:
    """C55: requests wait for all of it."""
    before = ids(stage, "a")
    sleep(stage)
    stage.submit("b", PROMPT)
    wake(stage, first)
    wake(stage, first)
    stage.run()
    assert stage.outputs("b") == []
    wake(stage, *(set(ALL) - {first}))
    stage.run()
    assert stage.tokens("b") == before


@pytest.mark.parametrize("first", ALL)
@pytest.mark.parametrize("level", [1, 2])
def test_what_was_woken_can_go_back_to_sleep(stage: Driven, first: str, level: int) -> None:
    """It says what it frees, however the rest sleeps."""
    before = ids(stage, "a")
    sleep(stage)
    wake(stage, first)
    deeper = level == 2 and first == "kv_cache"
    assert sleep(stage, level).bytes_freed == (0 if deeper else sizes(stage)[first])
    assert sleep(stage, level) == Acknowledged(1, 0)
    assert wake(stage).error is None
    assert ids(stage, "b") == before


def test_a_stage_may_sleep_deeper(stage: Driven) -> None:
    """C55: level 2 after level 1 drops the copy of the weights; level 1 after that is nothing."""
    before = ids(stage, "a")
    sleep(stage, 1)
    assert sleep(stage, 2) == Acknowledged(1, 0)
    assert sleep(stage, 1) == Acknowledged(1, 0)
    assert wake(stage, "kv_cache").error is not None  # it slept at level 2 indeed
    assert wake(stage).error is None
    assert ids(stage, "b") == before


def test_weights_that_were_dropped_are_woken_first(stage: Driven) -> None:
    sleep(stage, 2)
    answer = wake(stage, "kv_cache")
    assert answer.error is not None
    assert "wake 'weights' first" in answer.error.message
    assert wake(stage, "weights").error is None
    assert wake(stage, "kv_cache").error is None


@pytest.mark.parametrize("level", [0, 3, -1])
def test_there_are_two_levels(stage: Driven, level: int) -> None:
    answer = sleep(stage, level)
    assert answer.error is not None
    assert answer.error.code == "invalid_parameter"
    assert len(ids(stage, "a")) == 8  # awake


def test_waking_nonsense_cancels_nothing(stage: Driven) -> None:
    stage.submit("a", PROMPT)
    stage.host.step()
    stage.host.handle(Sleep(1, 5))
    assert wake(stage, "nonsense").error is not None
    stage.run()
    assert answers(stage)[5].error is None


# --- while it is about to sleep -------------------------------------------------------------------


def test_all_who_ask_meanwhile_are_answered_by_the_one_sleep(stage: Driven) -> None:
    """C55: nobody is told that it sleeps before it does; the deepest of them counts."""
    stage.submit("a", PROMPT)
    stage.host.step()
    for token, level in ((5, 1), (6, 2), (7, 1)):
        stage.host.handle(Sleep(level, token))
    assert answers(stage) == {}
    stage.run()
    freed = sum(sizes(stage).values())
    assert answers(stage) == {token: Acknowledged(token, freed) for token in (5, 6, 7)}
    assert wake(stage, "kv_cache").error is not None  # level 2


def test_waking_before_it_sleeps_says_so(stage: Driven) -> None:
    stage.submit("a", PROMPT)
    stage.host.step()
    stage.host.handle(Sleep(1, 5))
    stage.host.handle(Sleep(1, 6))
    stage.submit("b", PROMPT)
    assert wake(stage).error is None
    for token in (5, 6):
        error = answers(stage)[token].error
        assert error is not None
        assert error.message == "the stage was woken before it slept"
    stage.run()
    assert stage.tokens("a") == stage.tokens("b")


@pytest.mark.parametrize("how", ["abort", "end"])
def test_a_stage_sleeps_when_the_last_request_is_over(stage: Driven, how: str) -> None:
    stage.submit("a", PROMPT, sampling={"max_tokens": 30})
    stage.host.step()
    stage.host.handle(Sleep(1, 5))
    if how == "abort":
        stage.host.handle(Abort(["a"], 9))
    stage.run()
    assert answers(stage)[5].error is None
    assert len(stage.tokens("a")) == (1 if how == "abort" else 30)


# --- what arrives while it sleeps -----------------------------------------------------------------


def test_a_request_can_be_given_up_while_it_waits(stage: Driven) -> None:
    """C55: as a deadline does it. It never began, so nobody waits for the stage to wake."""
    sleep(stage)
    stage.submit("a", PROMPT)
    stage.submit("b", PROMPT)
    stage.abort("a")
    assert [e.uids for e in stage.events if isinstance(e, Aborted)] == [["a"]]
    wake(stage)
    stage.run()
    assert stage.outputs("a") == []
    assert len(stage.tokens("b")) == 8


def test_what_is_wrong_with_a_request_is_told_when_the_stage_wakes(stage: Driven) -> None:
    sleep(stage)
    stage.submit("a", [])
    stage.submit("b", PROMPT)
    wake(stage)
    stage.run()
    (end,) = stage.endings("a")
    assert end.error is not None
    assert end.error.code == "empty_input"
    assert len(stage.tokens("b")) == 8


def test_a_session_lives_through_it(stage: Driven) -> None:
    """C123: begun, updated, interrupted and ended around a sleep; its history is computed again."""
    stage.submit("s", PROMPT[:20], session=True)
    stage.run()
    first = stage.tokens("s")
    sleep(stage)
    stage.host.handle(Interrupt("s", 3))  # nothing runs: answered at once
    assert [e.token for e in stage.events if isinstance(e, Interrupted)] == [3]
    stage.host.handle(Update("s", 1, UpdateKind.EXTEND, [7, 8, 9]))
    stage.host.handle(Interrupt("s", 4))  # of what has not begun
    stage.host.handle(Update("s", 2, UpdateKind.EXTEND, [10, 11]))
    stage.run()
    assert stage.tokens("s") == first
    wake(stage)
    stage.run()
    assert [e.token for e in stage.events if isinstance(e, Interrupted)] == [3, 4]
    ends = [o.segment_finish for o in stage.outputs("s") if o.segment_finish]
    assert ends == ["length", "interrupt", "length"]
    second = stage.tokens("s")[len(first) :]
    stage.submit("afresh", PROMPT[:20] + first[:-1] + [7, 8, 9, 10, 11])
    stage.run()
    assert second == stage.tokens("afresh")
    stage.abort("s")


# --- weights that cannot be read again ------------------------------------------------------------


def _gone(file: Path) -> None:
    file.unlink()


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20_000])


def _without_a_weight(file: Path) -> None:
    weights = load_file(file)
    del weights["model.layers.1.self_attn.v_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})


def _of_another_shape(file: Path) -> None:
    weights = load_file(file)
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name][:, :-1].contiguous()
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize("damage", [_gone, _cut, _without_a_weight, _of_another_shape])
@pytest.mark.parametrize("tags", [[], ["weights"]], ids=["all", "weights"])
def test_a_stage_stays_asleep_until_its_weights_can_be_read(
    stage: Driven, lost: Path, damage: Callable[[Path], None], tags: list[str]
) -> None:
    """C55: a typed error, as often as it is tried; then it wakes, and every number is as it was."""
    before = ids(stage, "a")
    freed = sleep(stage, 2).bytes_freed
    whole = lost.read_bytes()
    damage(lost)
    stage.submit("b", PROMPT)
    for _ in range(2):
        error = wake(stage, *tags).error
        assert isinstance(error, ErrorInfo)
        assert error.code == "model_unavailable"
        assert "wake the stage once more" in error.message
        stage.run()
        assert stage.outputs("b") == []
        (asleep,) = stage.host._engine.call_workers("asleep_bytes")
        assert asleep == freed  # what was taken for the attempt is given back
    lost.write_bytes(whole)
    assert wake(stage).error is None
    stage.run()
    assert stage.tokens("b") == before


def test_a_held_request_is_a_request_of_its_own(stage: Driven) -> None:
    """C87: one that is held twice is refused when the stage wakes, and the first one answered."""
    sleep(stage)
    for _ in range(2):
        stage.host.handle(Submit("a", PROMPT, {"max_tokens": 2, "ignore_eos": True}))
    wake(stage)
    stage.run()
    assert sorted(str(end.finish) for end in stage.endings("a")) == ["error", "length"]
