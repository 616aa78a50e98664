"""The deployment: how an operator runs a pipeline on a machine. Frozen, typed, all of it optional.

What is None here is decided by `antiphon.pipeline.defaults`, which takes the topology's word first
and a default that suits the device after it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import msgspec.yaml

from antiphon.env import LogLevel, parse_timeout
from antiphon.errors import DeploymentError, SettingError
from antiphon.pipeline.suggest import did_you_mean
from antiphon.pipeline.topology import Topology

Device = Literal["auto", "cpu", "cuda"]
ConnectorKind = Literal["auto", "inproc", "shm"]

# vLLM arguments that have a field of their own, or that Antiphon sets itself.
OWN_FIELD = {
    "dtype": "dtype",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "kv_cache_memory_bytes": "kv_cache_bytes",
    "async_scheduling": "async_scheduling",
    "seed": "seed",
}
RESERVED = frozenset({"model", "scheduler_cls", "worker_cls", "additional_config"})

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_bytes(size: int | str) -> int:
    """Bytes of 67108864, "64MiB" or "0.5 GB". Raises ValueError, saying what to write."""
    if isinstance(size, int):
        count = size
    else:
        match = _SIZE.fullmatch(size.strip())
        if match is None or match[2].upper() not in _UNITS:
            raise ValueError(f"{size!r} is not a size; write bytes, or a number with MiB or GiB")
        count = int(float(match[1]) * _UNITS[match[2].upper()])
    if count <= 0:
        raise ValueError(f"{size!r} is not a size; it has to be positive")
    return count


class StageDeployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one stage runs. Raises DeploymentError, starting with the field's name."""

    device: Device = "auto"
    """Where the stage computes; auto is cuda where there is one and vLLM is built for it."""

    dtype: str | None = None
    """Type of weights and activations as vLLM names it: float32, bfloat16, float16, auto."""

    max_model_len: int | None = None
    """Longest request in tokens, prompt and answer together; None is the checkpoint's own limit."""

    max_num_seqs: int | None = None
    """Most requests in one step."""

    max_num_batched_tokens: int | None = None
    """Most tokens in one step."""

    kv_cache_bytes: int | str | None = None
    """Memory for the KV cache: bytes, or text such as 64MiB."""

    threads: int | None = None
    """CPU threads that the stage computes with."""

    input_wait_timeout_s: float | None = None
    """Seconds that a request may wait for its stage input without progress; 0 waits for ever.

    None takes ANTIPHON_INPUT_WAIT_TIMEOUT_S, and 600 without it.
    """

    async_scheduling: bool | None = None
    """Schedule the next step while the device computes; CUDA and ar stages only."""

    seed: int | None = None
    """Seed of the stage's sampling."""

    engine_args: dict[str, Any] = {}
    """Further vLLM EngineArgs, by vLLM's names."""

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "threads"):
            value = msgspec.structs.asdict(self)[name]
            if value is not None and value <= 0:
                raise DeploymentError(f"{name}: {value} is not positive; give at least 1")
        _check_timeout("input_wait_timeout_s", self.input_wait_timeout_s)
        if self.kv_cache_bytes is not None:
            size = _checked_bytes("kv_cache_bytes", self.kv_cache_bytes)
            msgspec.structs.force_setattr(self, "kv_cache_bytes", size)
        for name in self.engine_args:
            if name in RESERVED:
                raise DeploymentError(f"engine_args.{name}: Antiphon sets this itself; remove it")
            if name in OWN_FIELD:
                raise DeploymentError(
                    f"engine_args.{name}: this has a key of its own; set {OWN_FIELD[name]} beside"
                    " engine_args"
                )


class Deployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a pipeline runs. Raises DeploymentError, starting with the field's name."""

    pipeline: str = "voice"
    """Name of the pipeline that this deployment is for."""

    connector: ConnectorKind = "auto"
    """What moves payloads: inproc within one process, shm (shared memory) between processes."""

    connector_bytes: int | str = "256MiB"
    """Most bytes of payloads that may be under way at once: bytes, or text such as 256MiB."""

    start_timeout_s: float = 600.0
    """Seconds that the stages may take to start once their models are there; 0 waits for ever."""

    in_process: bool = False
    """Run all stages in the caller's process instead of one process each."""

    log_level: LogLevel | None = None
    """What the stages' processes write on stderr; at error nothing, its reason is in the error.

    None takes ANTIPHON_LOG_LEVEL, and error without it. Stages in the caller's process follow
    vLLM's own settings.
    """

    stages: dict[str, StageDeployment] = {}
    """Settings per stage, by the stage's name in the topology."""

    def __post_init__(self) -> None:
        size = _checked_bytes("connector_bytes", self.connector_bytes)
        msgspec.structs.force_setattr(self, "connector_bytes", size)
        _check_timeout("start_timeout_s", self.start_timeout_s)
        if self.in_process and self.connector == "shm":
            raise DeploymentError("connector: shm is for stages in processes; use inproc or auto")
        if not self.in_process and self.connector == "inproc":
            raise DeploymentError("connector: inproc needs in_process: true; use shm or auto")

    def check_stages(self, topology: Topology) -> None:
        """Raise DeploymentError if this is for another pipeline or names a stage it lacks."""
        for name in self.stages:
            if name not in topology.stage_names:
                raise DeploymentError(
                    f"stages.{name}: pipeline {topology.name} has no such stage"
                    f"{did_you_mean(name, topology.stage_names)}"
                )
        if self.pipeline != topology.name:
            raise DeploymentError(
                f"pipeline: this deployment is for {self.pipeline}, not for {topology.name};"
                " correct one of the two"
            )


def _check_timeout(name: str, seconds: float | None) -> None:
    if seconds is None:
        return
    try:
        parse_timeout(seconds, name)
    except SettingError as error:
        raise DeploymentError(str(error)) from None


def _checked_bytes(name: str, size: int | str) -> int:
    try:
        return parse_bytes(size)
    except ValueError as error:
        raise DeploymentError(f"{name}: {error}") from None


def load_deployment(path: str | Path) -> Deployment:
    """The deployment in a YAML file. Raises DeploymentError, naming the file and the key."""
    try:
        data = msgspec.yaml.decode(Path(path).read_text(encoding="utf-8"))
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
    raw_stages = data.get("stages", {})
    if not isinstance(raw_stages, dict):
        raise DeploymentError(f"stages: expected stage names, got {type(raw_stages).__name__}")
    stages = {
        str(name): _convert(value, StageDeployment, f"stages.{name}.")
        for name, value in raw_stages.items()
    }
    return _convert({**data, "stages": stages}, Deployment, "")


S = TypeVar("S", StageDeployment, Deployment)


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
        try:
            values[key] = msgspec.convert(value, types[key])
        except msgspec.ValidationError as error:
            reason = str(error).replace("`", "")
            raise DeploymentError(f"{path}{key}: {reason[:1].lower()}{reason[1:]}") from None
    try:
        return struct(**values)
    except DeploymentError as error:
        raise DeploymentError(f"{path}{error}") from None
