"""Deployments out of YAML files and plain data; each mistake is named by its key's path.

An alias of YAML's is the very object that its anchor is. A few lines of them can stand for billions
of values, or for one without an end, so they are counted as often as they stand there before
anything walks through them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import msgspec.yaml

from antiphon.errors import DeploymentError
from antiphon.pipeline.deployment import ALL_STAGES, Deployment
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.pipeline.suggest import did_you_mean
from antiphon.pipeline.supervision import Supervision

MAX_FILE_BYTES = 1 << 20
MAX_VALUES = 10_000
"""Of one deployment, keys included; an alias counts as all that it stands for."""
MAX_DEPTH = 32
_INT_BITS = 63  # of what crosses to another process, besides the sign


def load_deployment(path: str | Path) -> Deployment:
    """The deployment in a YAML file. Raises DeploymentError, naming the file and the key."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise DeploymentError(f"{path}: is larger than {MAX_FILE_BYTES} bytes")
        data = msgspec.yaml.decode(content.decode("utf-8"))
    except OSError as error:
        raise DeploymentError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DeploymentError(f"{path}: is not UTF-8 text") from None
    except msgspec.DecodeError as error:
        reason = " ".join(str(error).split())
        raise DeploymentError(f"{path}: is not valid YAML: {reason}") from None
    try:
        return parse_deployment({} if data is None else data)
    except DeploymentError as error:
        raise DeploymentError(f"{path}: {error}") from None


def parse_deployment(data: object) -> Deployment:
    """A deployment from plain data. Raises DeploymentError, starting with the key's path."""
    if not isinstance(data, dict):
        raise DeploymentError(f"expected keys and values, got {type(data).__name__}")
    _check_bounds(data)
    stages = _convert_each(data, "stages", StageDeployment)
    edges = _convert_each(data, "edges", EdgeDeployment)
    data = {**data, "stages": stages, "edges": edges}
    if "supervision" in data:
        data["supervision"] = _convert(data["supervision"], Supervision, "supervision.")
    if isinstance(models := data.get("models"), str):
        data["models"] = {ALL_STAGES: models}
    return _convert(data, Deployment, "")


def _check_bounds(data: object) -> None:
    """Raise DeploymentError for more, deeper or larger values than any deployment has."""
    count, rest = 0, [(data, 0)]
    while rest:
        value, depth = rest.pop()
        count += 1
        if count > MAX_VALUES:
            raise DeploymentError(f"it has more than {MAX_VALUES} values, aliases counted in full")
        if depth > MAX_DEPTH:
            raise DeploymentError(f"it is more than {MAX_DEPTH} levels deep, or contains itself")
        if isinstance(value, int) and value.bit_length() > _INT_BITS:
            raise DeploymentError(f"it has a number of more than {_INT_BITS} bits")
        rest += [(part, depth + 1) for part in _parts(value)]


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list | tuple | set) else ()


S = TypeVar("S", bound=msgspec.Struct)


def _convert_each(data: dict[Any, Any], key: str, struct: type[S]) -> dict[str, S]:
    """The structs by name under `key`."""
    raw = data.get(key, {})
    if not isinstance(raw, dict):
        what = key.removesuffix("s")
        raise DeploymentError(f"{key}: expected {what} names, got {type(raw).__name__}")
    return {str(name): _convert(value, struct, f"{key}.{name}.") for name, value in raw.items()}


def _convert(data: object, struct: type[S], path: str) -> S:
    """`data` as `struct`, one key at a time so that an error can name the key that is wrong."""
    if not isinstance(data, dict):
        where = path.rstrip(".") or "deployment"
        raise DeploymentError(f"{where}: expected keys and values, got {type(data).__name__}")
    types = {field.name: field.type for field in msgspec.structs.fields(struct)}
    values = {}
    for key, value in data.items():
        if key not in types:
            raise DeploymentError(f"{path}{key}: unknown key{did_you_mean(str(key), types)}")
        if isinstance(value, msgspec.Struct):  # converted on its own, for the path of its keys
            values[key] = value
            continue
        try:
            values[key] = msgspec.convert(value, types[key])
        except msgspec.ValidationError as error:
            reason = str(error).replace("`", "")
            raise DeploymentError(f"{path}{key}: {reason[:1].lower()}{reason[1:]}") from None
    try:
        return struct(**values)
    except DeploymentError as error:
        raise DeploymentError(f"{path}{error}") from None
