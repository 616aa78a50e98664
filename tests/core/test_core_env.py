"""The environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon import env
from antiphon.errors import SettingError


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in env.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert env.input_wait_timeout_s() == 600.0
    assert env.cache_dir() == tmp_path / "antiphon"
    assert env.offline() is False
    assert env.log_level() == "error"
    assert env.api_key() is None


def test_an_empty_value_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in env.VARIABLES:
        monkeypatch.setenv(variable.name, "")
    assert env.input_wait_timeout_s() == 600.0
    assert env.offline() is False
    assert env.log_level() == "error"
    assert env.cache_dir().name == "antiphon"
    assert env.api_key() is None


def test_the_timeout_is_read_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_INPUT_WAIT_TIMEOUT_S", "2.5")
    assert env.input_wait_timeout_s() == 2.5
    monkeypatch.setenv("ANTIPHON_INPUT_WAIT_TIMEOUT_S", "0")
    assert env.input_wait_timeout_s() == 0.0


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "soon"])
def test_a_senseless_timeout_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("ANTIPHON_INPUT_WAIT_TIMEOUT_S", value)
    with pytest.raises(SettingError, match="ANTIPHON_INPUT_WAIT_TIMEOUT_S"):
        env.input_wait_timeout_s()


def test_a_relative_xdg_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    assert env.cache_dir() == Path.home() / ".cache" / "antiphon"


def test_the_own_cache_folder_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("ANTIPHON_CACHE_DIR", str(tmp_path / "own"))
    assert env.cache_dir() == tmp_path / "own"


@pytest.mark.parametrize(
    ("value", "result"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("no", False)]
)
def test_switches_are_booleans(monkeypatch: pytest.MonkeyPatch, value: str, result: bool) -> None:
    monkeypatch.setenv("ANTIPHON_OFFLINE", value)
    assert env.offline() is result
    assert env.check_every_step() is False
    monkeypatch.setenv("ANTIPHON_CHECK_EVERY_STEP", value)
    assert env.check_every_step() is result


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("ANTIPHON_OFFLINE", env.offline),
        ("ANTIPHON_CHECK_EVERY_STEP", env.check_every_step),
        ("ANTIPHON_LOG_LEVEL", env.log_level),
    ],
)
def test_other_values_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, read: object) -> None:
    monkeypatch.setenv(name, "perhaps")
    assert callable(read)
    with pytest.raises(SettingError, match=f"{name} is 'perhaps'"):
        read()


def test_log_levels_may_be_written_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_LOG_LEVEL", "DEBUG")
    assert env.log_level() == "debug"
