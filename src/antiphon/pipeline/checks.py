"""What fields of a deployment are held to. All raise DeploymentError, the field's name first."""

from __future__ import annotations

import msgspec

from antiphon.env import parse_timeout
from antiphon.errors import DeploymentError, SettingError
from antiphon.pipeline.values import parse_bytes


def check_counts(struct: msgspec.Struct, *names: str) -> None:
    """These fields are None or positive."""
    for name in names:
        value = msgspec.structs.asdict(struct)[name]
        if value is not None and value <= 0:
            raise DeploymentError(f"{name}: {value} is not positive; give at least 1")


def check_timeout(name: str, seconds: float | None) -> None:
    """`seconds` is None or a number of seconds, finite and not negative."""
    if seconds is None:
        return
    try:
        parse_timeout(seconds, name)
    except SettingError as error:
        raise DeploymentError(str(error)) from None


def count_bytes(struct: msgspec.Struct, *names: str) -> None:
    """Replace sizes that are text by their number of bytes, while `struct` is being made."""
    for name in names:
        size = msgspec.structs.asdict(struct)[name]
        if size is None:
            continue
        try:
            msgspec.structs.force_setattr(struct, name, parse_bytes(size))
        except ValueError as error:
            raise DeploymentError(f"{name}: {error}") from None
