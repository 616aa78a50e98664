"""Values of the options of `antiphon bench serve`, for argparse."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from antiphon.cli.arguments import positive_number


def number(text: str) -> float:
    """A finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def rate(text: str) -> float:
    """A number above 0, or `inf`."""
    return math.inf if text.strip().lower() == "inf" else positive_number(text)


def share(text: str) -> float:
    """A number from 0 to 1."""
    value = number(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def percentiles(text: str) -> tuple[float, ...]:
    """Numbers from 0 to 100 between commas: sorted, each once."""
    found = {number(part) for part in text.split(",")}
    if max(found) > 100:
        raise argparse.ArgumentTypeError(f"{text!r} has a percentile over 100")
    return tuple(sorted(found))


def measures(text: str) -> tuple[str, ...]:
    """Keys of `bench.serve_measures.MEASURES` between commas."""
    from antiphon.bench.serve_measures import MEASURES

    return tuple(
        _known(part.strip(), [measure.key for measure in MEASURES], text)
        for part in text.split(",")
    )


def goal(text: str) -> tuple[str, float]:
    """What an answer has to keep, `NAME:LIMIT`."""
    from antiphon.bench.serve_measures import ONE_EACH

    name, _, limit = text.partition(":")
    return _known(name, ONE_EACH, text), number(limit)


def json_object(text: str) -> dict[str, Any]:
    """An object in JSON."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not an object in JSON")
    return value


def _known(name: str, names: list[str] | tuple[str, ...], text: str) -> str:
    if name not in names:
        raise argparse.ArgumentTypeError(f"{text!r}: {name!r} is none of {', '.join(names)}")
    return name
