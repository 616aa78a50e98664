"""Inputs that are kept, each for a reason: replayed as they are, before anything is drawn."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.errors import DeploymentError, PayloadError
from antiphon.payload.wire import decode
from antiphon.pipeline.deployment_file import load_deployment
from fuzzing import CORPUS, Kept, bounded, kept
from realtime_talk import Talk

MOST_BYTES = 1 << 15  # of all together
TARGETS = ("payload", "deployment", "realtime")


def payload(file: Path) -> str | None:
    try:
        decode(file.read_bytes())
    except PayloadError as error:
        return str(error)
    return None


def deployment(file: Path) -> str | None:
    try:
        load_deployment(file)
    except DeploymentError as error:
        return str(error)
    return None


def realtime(file: Path) -> str | None:
    talk = Talk()
    told = talk.send(file.read_text(encoding="utf-8"))
    errors = [event["error"]["message"] for event in told if event["type"] == "error"]
    return str(errors[0]) if errors else None


REPLAY: dict[str, Callable[[Path], str | None]] = {
    "payload": payload,
    "deployment": deployment,
    "realtime": realtime,
}
ALL = [(target, one) for target in TARGETS for one in kept(target)]


@pytest.mark.parametrize(("target", "one"), ALL, ids=[f"{t}/{one.file}" for t, one in ALL])
def test_what_is_kept(target: str, one: Kept) -> None:
    file = CORPUS / target / one.file
    with bounded(file.stat().st_size):
        error = REPLAY[target](file)
    if one.error is None:
        assert error is None
    else:
        assert error is not None
        assert re.search(one.error, error), error


def test_everything_there_is_kept_for_a_reason() -> None:
    there = {f"{path.parent.name}/{path.name}" for path in CORPUS.glob("*/*")}
    assert there == {f"{target}/{one.file}" for target, one in ALL}
    assert all(one.reason for _, one in ALL)


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*.*")) < MOST_BYTES
