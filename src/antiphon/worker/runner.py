"""The seam between upstream's v1 model runner and the stage: overrides that call `super()`."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from antiphon.connector.registry import make_connector
from antiphon.core.options import StageOptions
from antiphon.upstream.envelopes import NewsOnArrival, with_news, work_of
from antiphon.upstream.generators import RewindGenerator, seeded
from antiphon.worker.decode_rows import RowConditioned, add_rows, decode_places
from antiphon.worker.device import ops_for
from antiphon.worker.materialise import StepRow, materialise
from antiphon.worker.side_outputs import OutputTap
from antiphon.worker.stage_io import StageIO


class StageRunnerMixin(GPUModelRunner):
    """Carries out a stage's orders around upstream's steps, and collects what edges want.

    Works for both runners: vLLM's CPU runner is a subclass of its GPU runner.
    """

    io: StageIO | None = None

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.device_ops = ops_for(device)
        self._tap: OutputTap | None = None
        self._untapped: Any = None
        options = StageOptions.from_config(vllm_config.additional_config)
        # One rank speaks for the stage; its tensor-parallel peers compute the same tokens.
        if options is not None and vllm_config.parallel_config.rank == 0:
            spec, model = options.connector, vllm_config.model_config
            connector = make_connector(spec.kind, spec.run, spec.max_bytes)
            width = model.get_inputs_embeds_size() if takes_rows(vllm_config) else None
            self.io = StageIO(options, model.model, connector, embed_width=width)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        if self.io is None:
            return
        model = super().get_model()
        if isinstance(model, RowConditioned):
            self.io.take_rows(model.row_width)
        if self.io.side_outputs:
            self._untapped = model
            self._tap = OutputTap(self.model)
            self.model = self._tap

    def get_model(self) -> Any:
        return super().get_model() if self._tap is None else self._untapped

    # --- per request --------------------------------------------------------------------------

    def _update_states(self, scheduler_output: SchedulerOutput) -> Any:
        for new in scheduler_output.scheduled_new_reqs:
            rows = None if self.io is None else self.io.prompt_rows(new.req_id)
            if rows is not None:
                new.prompt_embeds = rows.to(self.dtype)
                new.prompt_token_ids = None
            if (known := self.requests.get(new.req_id)) is not None:
                # A session's next segment: upstream takes its parameters, but not its seed.
                params = new.sampling_params
                seed = None if params is None else params.seed
                known.generator = None if seed is None else self._generator(seed)
        return super()._update_states(scheduler_output)

    def _generator(self, seed: int) -> torch.Generator:
        """What a seeded request samples with."""
        generator = torch.Generator(device=self.device)
        generator.manual_seed(seed)
        return generator

    def _on_request_state_removed(self, req_id: str, req_state: Any) -> None:
        super()._on_request_state_removed(req_id, req_state)
        if self.io is not None:
            self.io.removed(req_id)

    # --- the step -----------------------------------------------------------------------------

    def execute_model(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        if self.io is not None and (work := work_of(scheduler_output)) is not None:
            self.io.submit(work)
        return self._with_news(super().execute_model(scheduler_output, *args, **kwargs))

    def sample_tokens(self, grammar_output: Any) -> Any:  # type: ignore[override]
        try:
            if self.io is not None and self.io.wants_rows and self.execute_model_state is not None:
                self._collect_rows(self.execute_model_state)
            return self._with_news(super().sample_tokens(grammar_output))
        except BaseException:
            # The host ends the step's requests and goes on: leave no half-finished step behind.
            self.execute_model_state = None
            raise

    def _with_news(self, output: Any) -> Any:
        if self.io is None or output is None:
            return output  # None: `sample_tokens` follows and brings the news
        if isinstance(output, AsyncModelRunnerOutput):
            return NewsOnArrival(output, self.io.finish, self.io.take_news)
        if isinstance(output, ModelRunnerOutput):
            self.io.finish()
            return with_news(output, self.io.take_news())
        return output  # intermediate tensors of a pipeline-parallel rank

    def _preprocess(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        result = super()._preprocess(scheduler_output, *args, **kwargs)
        if self.io is not None and self.io.has_decode_rows:
            embeds = result[1]
            assert embeds is not None  # noqa: S101  rows are refused where there are none
            batch = self.input_batch
            places = decode_places(
                batch.req_ids,
                batch.num_prompt_tokens,
                batch.num_computed_tokens_cpu,
                self.query_start_loc.np,
                self.io.decode_rows,
            )
            add_rows(self.get_model(), embeds, places)
        return result

    def _collect_rows(self, state: Any) -> None:
        """Copy what live requests want before upstream's bookkeeping moves positions on."""
        io, batch = self.io, self.input_batch
        assert io is not None  # noqa: S101  the caller checked
        offsets = self.query_start_loc.np
        wanted = []
        for index, uid in enumerate(batch.req_ids):
            if (log := io.row_log(uid)) is not None:
                start, stop = int(offsets[index]), int(offsets[index + 1])
                position = int(batch.num_computed_tokens_cpu[index])
                wanted.append(StepRow(log, index, start, stop, position))
        if not wanted:
            return
        side = {} if self._tap is None else self._tap.take()
        num_requests = len(batch.req_ids)
        failed = materialise(self.device_ops, wanted, state.hidden_states, side, num_requests)
        for want, error in failed:
            io.fail(batch.req_ids[want.index], error)


def takes_rows(config: VllmConfig) -> bool:
    """Whether rows can reach the model: its peers are given none, drafts are verified without."""
    alone = config.parallel_config.world_size == 1 and config.speculative_config is None
    return alone and bool(config.model_config.enable_prompt_embeds)


class CpuStageRunner(StageRunnerMixin, CPUModelRunner):
    """The runner on CPU, where a seeded request's generator must be able to go back."""

    def _update_states(self, scheduler_output: SchedulerOutput) -> Any:
        deferred = super()._update_states(scheduler_output)
        for new in scheduler_output.scheduled_new_reqs:
            request = self.requests[new.req_id]
            if request.generator is not None:
                request.generator = self._generator(request.generator.initial_seed())
                index = self.input_batch.req_id_to_index[new.req_id]
                self.input_batch.generators[index] = request.generator
        return deferred

    def _generator(self, seed: int) -> torch.Generator:
        return seeded(seed)

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        for generator in self.input_batch.generators.values():
            if isinstance(generator, RewindGenerator):
                generator.mark()
        return super()._sample(*args, **kwargs)


class CudaStageRunner(StageRunnerMixin, GPUModelRunner):
    """The runner on CUDA."""
