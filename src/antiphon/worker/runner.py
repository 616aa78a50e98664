"""The seam between upstream's v1 model runner and the stage: overrides that call `super()`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from antiphon.connector.registry import make_connector
from antiphon.core.options import StageOptions
from antiphon.errors import DeploymentError, KVTransferError, TopologyError
from antiphon.upstream.envelopes import NewsOnArrival, with_news, work_of
from antiphon.upstream.generators import RewindGenerator, seeded
from antiphon.upstream.kv_connector import CacheLoad, engine_key, register_loader, unregister_loader
from antiphon.worker.decode_rows import RowConditioned, add_rows, decode_places
from antiphon.worker.device import ops_for
from antiphon.worker.fingerprint import model_fingerprint
from antiphon.worker.kv_cache import KvCaches
from antiphon.worker.kv_model import GivenCaches, attends_to_caches
from antiphon.worker.kv_setup import make_caches
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
        self.stage_caches: KvCaches | None = None
        self._given: GivenCaches | None = None
        options = self._options = StageOptions.from_config(vllm_config.additional_config)
        if options is not None:
            check_workers(options, vllm_config.parallel_config.world_size)
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
        if self.is_pooling_model and self._cache_inputs:
            self._given = self._given_caches(model, self.io)
        if self.io.side_outputs:
            self._untapped = model
            self._tap = OutputTap(self.model)
            self.model = self._tap

    def get_model(self) -> Any:
        return super().get_model() if self._tap is None else self._untapped

    # --- caches of other stages ---------------------------------------------------------------

    def initialize_kv_cache(
        self,
        kv_cache_config: KVCacheConfig,
        is_profiling: bool = False,
        kv_cache_allocation_context: AbstractContextManager[Any] | None = None,
    ) -> None:
        super().initialize_kv_cache(
            kv_cache_config, is_profiling, kv_cache_allocation_context=kv_cache_allocation_context
        )
        options = self._options
        if is_profiling or self.io is None or options is None or self.is_pooling_model:
            return
        takes = bool(self._cache_inputs)
        if not takes and all(edge.kv is None for edge in options.outputs):
            return
        layers, dtype = self.compilation_config.static_forward_context, self.dtype
        assert isinstance(dtype, torch.dtype)  # noqa: S101  upstream has resolved its name
        self.stage_caches = make_caches(
            kv_cache_config, layers, self.device_ops, dtype, self._fingerprint
        )
        self.io.attach_caches(self.stage_caches)
        if takes:
            register_loader(engine_key(options), self._load_caches)

    def _fingerprint(self) -> str:
        """Of the weights, as far as they decide what lies in a cache."""
        model, load = self.model_config, self.vllm_config.load_config
        drawn = model.seed if load.load_format == "dummy" else None
        config = model.hf_config.to_dict()
        return model_fingerprint(model.model, config, model.revision, model.quantization, drawn)

    def close_stage(self) -> None:
        """Release what this stage has registered and stored."""
        if self.io is None:
            return
        self.io.connector.close()
        if self._options is not None and self.stage_caches is not None and self._cache_inputs:
            unregister_loader(engine_key(self._options))

    @property
    def _cache_inputs(self) -> list[str]:
        """Incoming edges that bring caches."""
        return [] if self._options is None else [e.name for e in self._options.inputs if e.kv]

    def _load_caches(self, loads: Sequence[CacheLoad]) -> None:
        """Called by vLLM's connector before the forward that needs them."""
        assert self.io is not None  # noqa: S101  it has been registered with both
        assert self.stage_caches is not None  # noqa: S101
        for load in loads:
            cache = self.io.take_cache(load.uid)
            if load.first >= load.stop:
                continue  # the engine's own prefix cache has it all
            if cache is None:
                raise KVTransferError(f"the cache of request {load.uid} is not there to be loaded")
            self.stage_caches.load(cache, load.block_ids, load.first, load.stop)

    def _given_caches(self, model: object, io: StageIO) -> GivenCaches:
        if not attends_to_caches(model):
            edges = ", ".join(f"'{name}'" for name in self._cache_inputs)
            raise TopologyError(
                f"Edge {edges} brings KV caches, but {type(model).__name__} does not say that it"
                f" attends to any; set `attends_to_caches = True` on the model, or take kv out of"
                f" the edge."
            )
        return GivenCaches(self.device, io.cache)

    def _model_forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._given is not None:
            kwargs |= self._given.arguments(self.input_batch.req_ids, self.query_start_loc.np)
        return super()._model_forward(*args, **kwargs)

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
        if self._given is not None:
            self._given.drop(req_id)

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


def check_workers(options: StageOptions, world_size: int) -> None:
    """Raise DeploymentError if the stage hands caches over and each worker has only a part."""
    edges = [e.name for e in options.outputs if e.kv is not None]
    edges += [e.name for e in options.inputs if e.kv]
    if edges and world_size > 1:
        raise DeploymentError(
            f"Stage '{options.stage}' has the kv edge '{edges[0]}' and {world_size} workers, each"
            f" with a part of the KV cache; set tensor_parallel_size and pipeline_parallel_size"
            f" to 1."
        )


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
