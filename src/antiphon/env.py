"""The environment variables that Antiphon reads, typed and in one place.

They are read when asked for, never at import, so that a test or a caller may set them late. An
empty value counts as not set.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from antiphon.errors import SettingError

INPUT_WAIT_TIMEOUT = "ANTIPHON_INPUT_WAIT_TIMEOUT_S"
CACHE_DIR = "ANTIPHON_CACHE_DIR"
OFFLINE = "ANTIPHON_OFFLINE"
LOG_LEVEL = "ANTIPHON_LOG_LEVEL"
API_KEY = "ANTIPHON_API_KEY"
CHECK_EVERY_STEP = "ANTIPHON_CHECK_EVERY_STEP"
SHM_DIR = "ANTIPHON_SHM_DIR"

DEFAULT_INPUT_WAIT_TIMEOUT_S = 600.0
_ONE_DAY_S = 86_400.0
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
LogLevel = Literal["error", "warning", "info", "debug"]
_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable, as the documentation lists it."""

    name: str
    default: str
    meaning: str


VARIABLES = (
    Variable(
        INPUT_WAIT_TIMEOUT,
        f"{DEFAULT_INPUT_WAIT_TIMEOUT_S:g}",
        "seconds a request may wait for its stage input without progress; 0 waits for ever",
    ),
    Variable(
        CACHE_DIR,
        "$XDG_CACHE_HOME/antiphon or ~/.cache/antiphon",
        "where converted models are kept",
    ),
    Variable(OFFLINE, "0", "1: never fetch anything, use only what the cache holds"),
    Variable(LOG_LEVEL, "error", f"what the stages write on stderr: one of {', '.join(_LEVELS)}"),
    Variable(API_KEY, "none", "what callers of `antiphon serve` have to give as a bearer token"),
    Variable(
        SHM_DIR,
        "the system's own",
        "folder for payloads between stages, best in memory; where the system's is too small",
    ),
    Variable(
        CHECK_EVERY_STEP,
        "0",
        "1: debugging; stages check all their state after each step, and end where it disagrees",
    ),
)


def input_wait_timeout_s() -> float:
    """Seconds a request may wait for its stage input. 0: for ever. Raises SettingError."""
    value = os.environ.get(INPUT_WAIT_TIMEOUT, "")
    if not value.strip():
        return DEFAULT_INPUT_WAIT_TIMEOUT_S
    return parse_timeout(value, INPUT_WAIT_TIMEOUT)


def cache_dir() -> Path:
    """The folder for converted models; it need not exist yet."""
    own = os.environ.get(CACHE_DIR, "")
    if own.strip():
        return Path(own).expanduser().absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the XDG specification ignores relative paths
        base = Path.home() / ".cache"
    return base / "antiphon"


def offline() -> bool:
    """True if nothing may be fetched. Raises SettingError."""
    return _switched_on(OFFLINE)


def shm_dir() -> Path | None:
    """The folder for payloads between processes; None: the system's own. Raises SettingError."""
    value = os.environ.get(SHM_DIR, "")
    if not value.strip():
        return None
    folder = Path(value)
    if not (folder.is_absolute() and folder.is_dir()):
        raise SettingError(f"{SHM_DIR} is {value!r}; give the full path of a folder that is there.")
    return folder


def check_every_step() -> bool:
    """True if stages check all their state after each step. Raises SettingError."""
    return _switched_on(CHECK_EVERY_STEP)


def _switched_on(name: str) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if not value or value in _FALSE:
        return False
    raise SettingError(f"{name} is {value!r}; use 1 or 0.")


def log_level() -> LogLevel:
    """What the stages write on stderr. Raises SettingError."""
    value = os.environ.get(LOG_LEVEL, "").strip().lower() or "error"
    for level in _LEVELS:
        if value == level:
            return level
    raise SettingError(f"{LOG_LEVEL} is {value!r}; use one of {', '.join(_LEVELS)}.")


def api_key() -> str | None:
    """The key of the server, for it and for commands that call it; None: there is none."""
    return os.environ.get(API_KEY) or None


def adopt(variables: Mapping[str, str]) -> None:
    """Set variables of this process, for libraries that read them when they are imported."""
    os.environ.update(variables)


def with_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child process: this one's, and these."""
    return {**os.environ, **variables}


def parse_timeout(value: str | float, source: str) -> float:
    """A timeout in seconds; 0 means for ever.

    Raises SettingError, which names `source`, for what is negative, not finite or not a number.
    More than a day is allowed but reported in the log, as it is most often milliseconds given by
    mistake.
    """
    allowed = "use a number of seconds, 0 or larger (0 waits for ever)"
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        raise SettingError(f"{source} is {value!r}, which is not a number; {allowed}.") from None
    if isinstance(value, bool) or not math.isfinite(seconds) or seconds < 0:
        raise SettingError(f"{source} is {value!r}; {allowed}.")
    if seconds > _ONE_DAY_S:
        logger.warning("%s is %g seconds, more than a day; the unit is seconds", source, seconds)
    return abs(seconds)  # "-0" is 0
