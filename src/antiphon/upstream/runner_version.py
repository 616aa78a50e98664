"""Seam: which of vLLM's two model runners is in force.

Reason: the stage's runner extends the v1 runner. Upstream decides in
`VllmConfig.use_v2_model_runner`, which scheduler and worker both read; where it would choose v2,
`VLLM_USE_V2_MODEL_RUNNER=0` in the stage's process decides for v1. Fallback: a runner on v2's
`ModelState`.
"""

from __future__ import annotations

from vllm.config import VllmConfig

from antiphon.errors import SettingError

V1_RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def require_v1_runner(config: VllmConfig) -> None:
    """Raise SettingError unless vLLM has decided for the v1 runner in this process."""
    if config.use_v2_model_runner:
        raise SettingError(
            f"this version of Antiphon runs on vLLM's v1 model runner: "
            f"set {V1_RUNNER_VARIABLE}=0 before the engine is built"
        )
