"""Workers on CPU.

Seam: `CPUWorker.init_device` names its runner class in its body, so it builds a runner that is
thrown away before ours takes its place. Nothing is loaded at that point, and nothing is assigned to
upstream. Fallback: `_make_model_runner`, once the CPU worker calls it as the CUDA worker does.
"""

from __future__ import annotations

import torch
from vllm.v1.worker.cpu_worker import CPUWorker

from antiphon.worker.mixin import StageWorkerMixin
from antiphon.worker.runner import CpuStageRunner


class ARWorker(StageWorkerMixin, CPUWorker):
    """Worker of an autoregressive stage on CPU."""

    def init_device(self) -> None:
        if torch.cpu._is_amx_tile_supported():
            # A process has to ask the kernel for AMX. oneDNN does before its first product; vLLM's
            # attention in bfloat16 does not, and a stage whose attention comes first is killed.
            torch.cpu._init_amx()
        super().init_device()
        self.model_runner = CpuStageRunner(self.vllm_config, torch.device("cpu"))


class GenerationWorker(ARWorker):
    """Worker of a generation stage on CPU: the same seams, pooling-style steps."""
