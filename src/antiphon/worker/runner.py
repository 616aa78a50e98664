"""The seam between upstream's v1 model runner and the stage: overrides that call `super()`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput, SamplerOutput
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from antiphon.connector.registry import make_connector
from antiphon.core.options import StageOptions
from antiphon.errors import AntiphonError, TopologyError
from antiphon.upstream.envelopes import NewsOnArrival, with_news, work_of
from antiphon.upstream.generators import RewindGenerator, seeded
from antiphon.worker.capabilities import capabilities_of
from antiphon.worker.decode_rows import StepSpans
from antiphon.worker.device import ops_for
from antiphon.worker.frame_sampling import FrameSampling
from antiphon.worker.frames import Frames, FrameTable
from antiphon.worker.kv_runner import CacheRunnerMixin, check_workers
from antiphon.worker.materialise import StepRow, materialise
from antiphon.worker.model_inputs import ModelInputs
from antiphon.worker.side_outputs import OutputTap
from antiphon.worker.stage_io import StageIO
from antiphon.worker.step_outputs import StepOutputs, check_embeddings, check_layers


class StageRunnerMixin(CacheRunnerMixin):
    """Carries out a stage's orders around upstream's steps, and collects what edges want.

    Works for both runners: vLLM's CPU runner is a subclass of its GPU runner.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.device_ops = ops_for(device)
        self._tap: OutputTap | None = None
        self._untapped: Any = None
        self._inputs: ModelInputs | None = None
        self._frames: Frames | None = None
        self._sampling: Any = None  # the state of a step between its forward and its sampling
        options = self._options = StageOptions.from_config(vllm_config.additional_config)
        if options is not None:
            check_workers(options, vllm_config.parallel_config.world_size)
        # One rank speaks for the stage; its tensor-parallel peers compute the same tokens.
        if options is not None and vllm_config.parallel_config.rank == 0:
            spec, model = options.connector, vllm_config.model_config
            connector = make_connector(spec.kind, spec.run, spec.max_bytes)
            width = model.get_inputs_embeds_size() if takes_rows(vllm_config) else None
            self.io = StageIO(options, model.model, connector, embed_width=width)
        self._outputs = StepOutputs(() if self.io is None else self.io.side_outputs)
        if self._outputs.embeddings:
            check_embeddings(vllm_config)
        if self._outputs.layers:
            # Upstream's own interface for EAGLE-3: it then returns them beside the hidden states.
            check_layers(vllm_config, self._outputs.layers)
            self.use_aux_hidden_state_outputs = True

    def _get_eagle3_aux_layers_from_config(self) -> tuple[int, ...] | None:
        return self._outputs.layers or super()._get_eagle3_aux_layers_from_config()

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        if self.io is None:
            return
        model = super().get_model()
        can = capabilities_of(model)
        self.io.attach_model(can)
        if can.frame_size:
            if not takes_rows(self.vllm_config):
                raise TopologyError(
                    f"{type(model).__name__} makes frames, which are its inputs in place of tokens;"
                    f" set enable_prompt_embeds in its engine arguments, and give it one worker"
                )
            slots, length = self.max_num_reqs, self.max_model_len
            table = FrameTable(slots, length, can.frame_size, self.device_ops)
            hook: Any = model  # its methods have been looked for
            self._frames = Frames(hook, table, can.frame_size)
        if takes_rows(self.vllm_config):
            width, dtype = self.inputs_embeds_size, self.inputs_embeds.gpu.dtype
            self._inputs = ModelInputs(model, can, (width, dtype), self._frames, self.device_ops)
        self._give_caches(model, self.io, attends=can.attends_to_caches)
        if self._outputs.of_model:
            self._untapped = model
            self._tap = OutputTap(self.model)
            self.model = self._tap

    def get_model(self) -> Any:
        return super().get_model() if self._tap is None else self._untapped

    # --- per request --------------------------------------------------------------------------

    def _update_states(self, scheduler_output: SchedulerOutput) -> Any:
        for new in scheduler_output.scheduled_new_reqs:
            uid, params = new.req_id, new.sampling_params
            prompt = None if self.io is None else self.io.prompt_rows(uid)
            if prompt is not None and self._inputs is not None:
                rows, error = self._inputs.embed_prompt(prompt)
                new.prompt_embeds = rows
                # None of its ids is a token. They stay for upstream's penalties, which would count
                # what another request has left in their place.
                new.prompt_is_token_ids = [False] * len(rows)
                self._fail(uid, error)
            if self._frames is not None:
                self._begin_frames(self._frames, uid, params)
            if (known := self.requests.get(uid)) is not None:
                # A session's next segment: upstream takes its parameters, but not its seed.
                seed = None if params is None else params.seed
                known.generator = None if seed is None else self._generator(seed)
        return super()._update_states(scheduler_output)

    def _begin_frames(self, frames: Frames, uid: str, params: Any) -> None:
        try:
            sampling = FrameSampling.of(uid, params)
        except AntiphonError as error:
            sampling = FrameSampling()
            self._fail(uid, error)
        frames.add(uid, sampling)

    def check_integrity(self) -> None:
        """Raise AssertionError if frames or caches are kept for other requests than upstream
        knows.
        """
        if self._given is not None:
            self._given.check_integrity(self.requests)
        if self._frames is None:
            return
        self._frames.check_integrity()
        if self._frames.uids != self.requests.keys():
            raise AssertionError("frames are kept for other requests than the worker has")

    def _fail(self, uid: str, error: AntiphonError | None) -> None:
        if error is not None and self.io is not None:
            self.io.fail(uid, error)

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
        if self._frames is not None:
            self._frames.drop(req_id)

    # --- the step -----------------------------------------------------------------------------

    def execute_model(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        if self.io is not None and (work := work_of(scheduler_output)) is not None:
            self.io.submit(work)
        return self._with_news(super().execute_model(scheduler_output, *args, **kwargs))

    def sample_tokens(self, grammar_output: Any) -> Any:  # type: ignore[override]
        wanted = self.io is not None and self.io.wants_rows
        self._sampling = self.execute_model_state if wanted or self._frames is not None else None
        try:
            return self._with_news(super().sample_tokens(grammar_output))
        except BaseException:
            # The host ends the step's requests and goes on: leave no half-finished step behind.
            self.execute_model_state = None
            raise
        finally:
            self._sampling = None

    def _sample(self, *args: Any, **kwargs: Any) -> SamplerOutput:
        sampled = super()._sample(*args, **kwargs)
        if self._sampling is not None:
            # Before upstream's bookkeeping moves positions on.
            if self._frames is not None:
                self._make_frames(self._frames, self._sampling, sampled.sampled_token_ids)
            self._collect_rows(self._sampling)
        return sampled

    def _make_frames(self, frames: Frames, state: Any, token_ids: torch.Tensor) -> None:
        """Of the tokens that have just been sampled, [num_requests, 1]; partial prefills have
        none.
        """
        spans, whole = self._spans, np.flatnonzero(~self._partial)
        indices = spans.num_computed + np.diff(spans.offsets) - spans.num_prompt
        places = [(spans.uids[number], int(indices[number])) for number in whole]
        rows = self.device_ops.to_device(torch.from_numpy(whole))
        frames.make(places, state.sample_hidden_states[rows], token_ids[rows, 0].long())

    @property
    def _spans(self) -> StepSpans:
        batch, count = self.input_batch, self.input_batch.num_reqs
        prompt, computed = batch.num_prompt_tokens[:count], batch.num_computed_tokens_cpu[:count]
        return StepSpans(batch.req_ids, prompt, computed, self.query_start_loc.np[: count + 1])

    @property
    def _partial(self) -> npt.NDArray[np.bool_]:
        """By request of the batch: whether the step ends inside its prompt, and samples nothing."""
        partial: npt.NDArray[np.bool_] = self.discard_request_mask.np[: self.input_batch.num_reqs]
        return partial

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
        io, (ids, embeds) = self.io, result[:2]
        if io is None:
            return result
        if self._inputs is not None and (self._frames is not None or io.has_decode_rows):
            assert embeds is not None  # noqa: S101  the model is given embeddings
            self._inputs.overlay(embeds, self._spans, io.decode_rows)
        if self._outputs.embeddings and io.wants_rows:
            kept = self.get_model().embed_input_ids(ids) if embeds is None else embeds.clone()
            self._outputs.keep_embeddings(kept)
        return result

    def _collect_rows(self, state: Any) -> None:
        """Copy what live requests want."""
        io = self.io
        if io is None or not io.wants_rows:
            return
        spans, wanted = self._spans, []
        for index, uid in enumerate(spans.uids):
            if (log := io.row_log(uid)) is not None:
                start, stop = int(spans.offsets[index]), int(spans.offsets[index + 1])
                wanted.append(StepRow(log, index, start, stop, int(spans.num_computed[index])))
        if not wanted:
            return
        side = {} if self._tap is None else dict(self._tap.take())
        side |= self._outputs.fields(
            len(state.hidden_states),
            self.input_ids.gpu,
            state.aux_hidden_states,
            self._frame_rows(wanted, spans, len(state.hidden_states)),
        )
        num_requests = len(spans.uids)
        failed = materialise(self.device_ops, wanted, state.hidden_states, side, num_requests)
        for want, error in failed:
            io.fail(spans.uids[want.index], error)

    def _frame_rows(
        self, wanted: list[StepRow], spans: StepSpans, num_tokens: int
    ) -> torch.Tensor | None:
        """The frame of the token that follows each position, where it is known."""
        if self._frames is None or not self._outputs.frames:
            return None
        known, partial = [], self._partial
        for want in wanted:
            uid, prompt = spans.uids[want.index], int(spans.num_prompt[want.index])
            first = want.first_position - want.start + 1 - prompt  # output index of token row 0
            stop = want.stop - int(partial[want.index])  # what follows the last is not known yet
            known += [(uid, row, first + row) for row in range(max(want.start, -first), stop)]
        return self._frames.rows(known, num_tokens)


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

    def _sample(self, *args: Any, **kwargs: Any) -> SamplerOutput:
        for generator in self.input_batch.generators.values():
            if isinstance(generator, RewindGenerator):
                generator.mark()
        return super()._sample(*args, **kwargs)


class CudaStageRunner(StageRunnerMixin, GPUModelRunner):
    """The runner on CUDA."""
