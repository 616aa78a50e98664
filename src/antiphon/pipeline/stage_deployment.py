"""What a deployment says about one stage."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from antiphon.errors import DeploymentError
from antiphon.pipeline.checks import check_counts, check_timeout, count_bytes
from antiphon.pipeline.values import is_plain

Device = Literal["auto", "cpu", "cuda"]

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

    active_streams: int | None = None
    """Streams that are served at a time; generation stages only. 0, the default: all that fit."""

    seed: int | None = None
    """Seed of the stage's sampling."""

    engine_args: dict[str, Any] = {}
    """Further vLLM EngineArgs, by vLLM's names."""

    def __post_init__(self) -> None:
        check_counts(self, "max_model_len", "max_num_seqs", "max_num_batched_tokens", "threads")
        if self.active_streams is not None and self.active_streams < 0:
            raise DeploymentError(
                f"active_streams: {self.active_streams} is negative; give 0 for all that fit"
            )
        check_timeout("input_wait_timeout_s", self.input_wait_timeout_s)
        count_bytes(self, "kv_cache_bytes")
        for name, value in self.engine_args.items():
            if not is_plain(value):
                raise DeploymentError(
                    f"engine_args.{name}: it has to cross to another process; give numbers, texts,"
                    " truth values, null, and lists and maps of them"
                )
            if name in RESERVED:
                raise DeploymentError(f"engine_args.{name}: Antiphon sets this itself; remove it")
            if name in OWN_FIELD:
                raise DeploymentError(
                    f"engine_args.{name}: this has a key of its own; set {OWN_FIELD[name]} beside"
                    " engine_args"
                )
