"""What a stage's worker adds to upstream's: memory given back and taken, and checks."""

from __future__ import annotations

import multiprocessing
from contextlib import ExitStack

from vllm.v1.worker.gpu_worker import Worker

from antiphon.core.parent import die_with_parent
from antiphon.worker.reload import reload_whole
from antiphon.worker.runner import StageRunnerMixin


class StageWorkerMixin(Worker):
    """Called on every rank through vLLM's collective RPC; each answer is one rank's."""

    def init_device(self) -> None:
        """Upstream's own, in a process that ends with the stage's.

        Upstream tells workers by a pipe that their engine is gone; one that is stopped hears
        nothing.
        """
        alone = self.parallel_config.world_size == 1
        if not alone and multiprocessing.parent_process() is not None:
            die_with_parent()
        super().init_device()

    @property
    def stage_runner(self) -> StageRunnerMixin:
        """The runner that `init_device` made."""
        runner: object = self.model_runner
        assert isinstance(runner, StageRunnerMixin)  # noqa: S101  our own init_device made it
        return runner

    def stage_sleep(self, level: int) -> int:
        """Give memory back at `level` (1: weights to host, 2: weights dropped). Bytes freed."""
        ops = self.stage_runner.device_ops
        before = ops.free_bytes()
        self.sleep(level)
        if (io := self.stage_runner.io) is not None:
            io.connector.trim()
        return max(0, ops.free_bytes() - before)

    def stage_wake(self, tags: list[str], reload: bool) -> None:
        """Undo `stage_sleep`; with `reload` the weights were dropped and are read again.

        Raises ModelUnavailableError if they cannot be read. Then all that was taken is given back,
        and it may be tried again.
        """
        self.wake_up(tags)
        if reload and self.stage_runner.device_ops.frees_memory:
            with ExitStack() as stack:
                stack.callback(self.sleep, 2)
                config = self.vllm_config.model_config
                reload_whole(self.model_runner.get_model(), config, self.reload_weights)
                stack.pop_all()

    def stage_row_edges(self) -> list[str]:
        """The outgoing edges whose adapters want tensors of the requests' positions."""
        io = self.stage_runner.io
        return [] if io is None else io.row_edges

    def stage_quiet_edges(self) -> list[str]:
        """The outgoing edges whose adapters are told of a request's end and of no step."""
        io = self.stage_runner.io
        return [] if io is None else io.quiet_edges

    def stage_inspect(self) -> dict[str, int]:
        """Check the worker's stores; counts of what they hold, and of lost caches.

        Raises AssertionError.
        """
        runner = self.stage_runner
        runner.check_integrity()
        held = {"requests": len(runner.requests), "io": 0, "connector_entries": 0}
        if runner.io is not None:
            runner.io.check_integrity()
            held["io"] = len(runner.io)
            held["connector_entries"] = runner.io.connector.statistics().entries
            held["recomputed_caches"] = runner.io.recomputed_caches
        return held

    def shutdown(self) -> None:
        """Release what the connector still holds, then upstream's own."""
        runner: object = self.model_runner
        if isinstance(runner, StageRunnerMixin):
            runner.close_stage()
        super().shutdown()
