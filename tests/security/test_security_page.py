"""docs/security.md says what is so: each default is the code's, and every limit is there."""

from __future__ import annotations

import importlib
import re
from typing import Any

import msgspec
import pytest

from antiphon.cli.main import main
from antiphon.payload.wire import Limits
from antiphon.pipeline.values import parse_bytes
from antiphon.serve.realtime.settings import RealtimeSettings
from antiphon.serve.settings import ServeSettings
from source import ROOT

TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ROWS = [
    (row[1].strip(), row[2].strip(), row[3])
    for row in re.finditer(r"^\| [^|]+ \|([^|]+)\|([^|]*)\| `([\w.:]+)` \|$", TEXT, re.MULTILINE)
]
NO_LIMITS = {
    "host", "port", "api_key", "served_model_name", "admin", "allow_origins", "realtime",
}  # fmt: skip


def default_of(place: str) -> Any:
    """What the code has at `module:name`, or as a field's default at `module:Class.field`."""
    module, _, name = place.partition(":")
    owner, _, attribute = name.partition(".")
    value = getattr(importlib.import_module(f"antiphon.{module}"), owner)
    if not attribute:
        return value
    return getattr(value() if isinstance(value, type) else value, attribute)


def documented(text: str) -> float | None:
    """What a default means: a number, perhaps with its unit; None where there is none."""
    if not re.match(r"\d", text):
        return None
    number, _, unit = text.replace(",", "").partition(" ")
    return parse_bytes(f"{number}{unit}") if unit.endswith("iB") else float(number)


@pytest.mark.parametrize(("shown", "option", "place"), ROWS, ids=[row[2] for row in ROWS])
def test_defaults_are_those_of_the_code(shown: str, option: str, place: str) -> None:
    assert documented(shown) == default_of(place)


def test_every_limit_is_listed() -> None:
    listed = {place.partition(":")[2] for _, _, place in ROWS}
    for struct in (ServeSettings, RealtimeSettings):
        fields = {field.name for field in msgspec.structs.fields(struct)} - NO_LIMITS
        assert {f"{struct.__name__}.{name}" for name in fields} <= listed
    assert {f"Limits.{name}" for name in Limits.__slots__} <= listed
    assert len(ROWS) > 30


def test_options_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    helped = capsys.readouterr().out
    for _, option, _ in ROWS:
        if option.startswith("`--"):
            assert option.strip("`") in helped


def test_the_number_of_sockets_follows_the_calls() -> None:
    """The one default that is no number: twice as many calls, and 64."""
    assert ServeSettings(max_connections=10).most_sockets == 2 * 10 + 64


def test_tests_that_the_page_names_exist() -> None:
    for name in re.findall(r"`(tests/[\w./]+)`", TEXT):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`(test_\w+\.py)`", TEXT):
        assert list((ROOT / "tests").rglob(name)), name
