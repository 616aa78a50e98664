"""Workers and runners are upstream's with a few overrides; the CUDA ones import without a GPU."""

from __future__ import annotations

import copy
import inspect

import pytest
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from antiphon.worker import cpu, cuda
from antiphon.worker.device import CudaOps, DeviceOps
from antiphon.worker.mixin import StageWorkerMixin
from antiphon.worker.runner import CpuStageRunner, CudaStageRunner, StageRunnerMixin, takes_rows
from factory import make_config

OVERRIDES = {
    "load_model",
    "get_model",
    "execute_model",
    "sample_tokens",
    "_update_states",
    "_on_request_state_removed",
    "_preprocess",
}


@pytest.mark.parametrize(("module", "base"), [(cpu, CPUWorker), (cuda, Worker)])
def test_workers_are_upstreams(module: object, base: type) -> None:
    for worker in (module.ARWorker, module.GenerationWorker):  # type: ignore[attr-defined]
        assert issubclass(worker, base)
        assert issubclass(worker, StageWorkerMixin)


def test_the_cpu_worker_is_no_cuda_worker_of_ours() -> None:
    assert not issubclass(cpu.ARWorker, cuda.ARWorker)


@pytest.mark.parametrize(
    ("runner", "base"), [(CpuStageRunner, CPUModelRunner), (CudaStageRunner, GPUModelRunner)]
)
def test_runners_are_upstreams(runner: type, base: type) -> None:
    assert issubclass(runner, base)
    for name in OVERRIDES:
        assert name in vars(StageRunnerMixin)
        assert hasattr(base, name), f"upstream has no {name} to override"
        # the mixin's stands before upstream's; the CPU runner's own calls it
        owners = [cls for cls in runner.__mro__ if name in vars(cls)]
        assert owners.index(StageRunnerMixin) < owners.index(GPUModelRunner)


def test_what_the_cuda_worker_overrides_exists() -> None:
    assert "_make_model_runner" in vars(Worker)
    assert "_make_model_runner" in vars(cuda.ARWorker)
    assert "init_device" in vars(CPUWorker)


def test_the_cuda_operations_are_complete() -> None:
    """Abstract methods left open would be found on the GPU only."""
    assert issubclass(CudaOps, DeviceOps)
    assert CudaOps.__abstractmethods__ == frozenset()
    assert {"snapshot", "free_bytes"} <= vars(CudaOps).keys()


def test_the_memory_snapshot_follows_the_distributed_initialisation() -> None:
    """Upstream's own order in `init_device`, which the CUDA worker leaves to it."""
    assert "init_device" not in vars(cuda.ARWorker)
    source = inspect.getsource(Worker.init_device)
    assert (
        0 < source.index("init_worker_distributed_environment(") < source.index("MemorySnapshot(")
    )


@pytest.mark.parametrize(
    ("embeds", "workers", "taken"), [(True, 1, True), (False, 1, False), (True, 2, False)]
)
def test_rows_reach_a_model_that_takes_embeddings_on_one_worker(
    embeds: bool, workers: int, taken: bool
) -> None:
    """Its tensor-parallel peers are given none: they would compute other tokens."""
    config = copy.deepcopy(make_config())
    config.model_config.enable_prompt_embeds = embeds
    config.parallel_config.world_size = workers
    assert takes_rows(config) is taken
