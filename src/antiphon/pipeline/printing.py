"""The filled deployment as YAML. Same input, same text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import msgspec.yaml

from antiphon.pipeline.deployment import Deployment


def config_yaml(deployment: Deployment) -> str:
    """A deployment file: loading it gives `deployment` again."""
    return msgspec.yaml.encode(_plain(msgspec.to_builtins(deployment))).decode()


def _plain(value: Any) -> Any:
    """Lists and dicts all the way down, enums as their text, as YAML's safe dumper wants it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value
