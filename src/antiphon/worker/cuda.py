"""Workers on CUDA.

Upstream takes its memory snapshot after distributed initialisation, in the same `init_device` that
calls `_make_model_runner`; nothing is added to that order.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu_worker import Worker

from antiphon.worker.mixin import StageWorkerMixin
from antiphon.worker.runner import CudaStageRunner


class ARWorker(StageWorkerMixin, Worker):
    """Worker of an autoregressive stage on CUDA."""

    def _make_model_runner(self) -> Any:
        device = self.device
        assert device is not None  # noqa: S101  set before upstream calls this
        return CudaStageRunner(self.vllm_config, device)


class GenerationWorker(ARWorker):
    """Worker of a generation stage on CUDA: the same seams, pooling-style steps."""
