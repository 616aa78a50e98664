"""The resolved configuration as YAML: topology and filled deployment. Same input, same text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
import msgspec.yaml

from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.topology import Topology


def config_yaml(topology: Topology, deployment: Deployment) -> str:
    """Both as one YAML document; what is under `deployment` is a valid deployment file."""
    document = {
        "topology": _plain(dataclasses.asdict(topology)),
        "deployment": _plain(msgspec.to_builtins(deployment)),
    }
    return msgspec.yaml.encode(document).decode()


def _plain(value: Any) -> Any:
    """Lists and dicts all the way down, enums as their text, as YAML's safe dumper wants it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value
