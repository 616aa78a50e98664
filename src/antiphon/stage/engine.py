"""A vLLM engine in this process with the stage's scheduler and workers.

Seam: vLLM's own in-process client over an unmodified `EngineCore`. The host steps it; no upstream
loop is repeated. Names used: `InprocClient`, `EngineCore.{scheduler, batch_queue,
request_block_hasher}`.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from transformers import GenerationConfig
from vllm import PoolingParams, SamplingParams
from vllm.config import ModelConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.tasks import POOLING_TASKS, PoolingTask
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.executor.abstract import Executor

from antiphon.core.options import PROMPT_EDGE, InEdge, StageOptions
from antiphon.core.prompt_plan import PromptUpdate
from antiphon.errors import InvalidRequestError, TopologyError
from antiphon.pipeline.topology import StageKind
from antiphon.sched.ar import ARMixin
from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.sched.sessions import SessionUpdate
from antiphon.stage.messages import Submit, Update
from antiphon.stage.spec import StageSpec
from antiphon.upstream.audio import AudioProcessor, HeardPrompt, hears
from antiphon.upstream.kv_connector import connector_config


class StageEngine:
    """Builds the engine in its constructor; the calling thread steps it."""

    def __init__(self, spec: StageSpec) -> None:
        inputs = spec.inputs
        if spec.prompt_adapter is not None:
            inputs += (InEdge(PROMPT_EDGE, spec.prompt_adapter),)
        options = StageOptions(
            spec.name,
            spec.connector,
            inputs,
            spec.outputs,
            spec.atomic_inputs,
            spec.recomputes,
            spec.active_streams,
        )
        own_config: dict[str, Any] = {}
        if spec.hf_config is not None:
            own_config["hf_overrides"] = _function(spec.hf_config)
        args = EngineArgs(
            model=spec.model,
            additional_config=options.to_config(),
            kv_transfer_config=connector_config() if spec.kv_connector else None,
            **spec.engine_args,
            **own_config,
        )
        self.config = args.create_engine_config()
        if self.config.device_config.device_type == "cpu":
            # Upstream's CPU platform switches the overlap off while it makes the configuration; a
            # deployment may not ask for it there, but what the spec says holds (its scheduler is
            # an AsyncScheduler then), so that overlapping steps can be tested without a GPU.
            overlap = bool(spec.engine_args.get("async_scheduling"))
            self.config.scheduler_config.async_scheduling = overlap
        self._client = InprocClient(self.config, Executor.get_class(self.config), log_stats=False)
        self._generates = spec.kind is StageKind.AR
        self._core = self._client.engine_core
        model = self.config.model_config
        self._generation_config = _generation_config(model, spec) if self._generates else {}
        self._eos = self._generation_config.get("eos_token_id")
        self._task = None if self._generates else _pooling_task(self._client)
        self._arrival = 0.0
        # Made here and not with the first clip: what is wrong with it is an error of the start.
        hearing = self._generates and hears(self.config)
        self._audio = AudioProcessor(self.config) if hearing else None
        # Edges whose adapters want tensors of every position.
        self._row_edges = frozenset(self.call_workers("stage_row_edges")[0])
        quiet = frozenset(self.call_workers("stage_quiet_edges")[0])
        self.scheduler.coordinator.quiet_edges = quiet

    @property
    def scheduler(self) -> StageSchedulerMixin:
        scheduler = self._core.scheduler
        assert isinstance(scheduler, StageSchedulerMixin)  # noqa: S101  the config named it
        return scheduler

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_requests() or bool(self._core.batch_queue)

    @property
    def num_free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    @property
    def num_blocks(self) -> int:
        return int(self.scheduler.kv_cache_config.num_blocks)

    def step(self) -> EngineCoreOutputs:
        """One engine step. Whatever the model raises comes out of here."""
        return self._client.get_output()

    def prompt(self, submit: Submit) -> HeardPrompt:
        """The request's prompt as the model sees it. With clips it takes its time: steps wait.

        Raises InvalidRequestError for clips that the stage cannot take, InputTooLongError and
        AdapterError as `AudioProcessor.prompt`.
        """
        if not submit.audio:
            return HeardPrompt(submit.token_ids, [])
        if self._audio is None or not self._audio.max_clips:
            raise InvalidRequestError(
                "the stage takes no audio: its model has no input for it, or its engine arguments"
                " rule it out (limit_mm_per_prompt, skip_tokenizer_init)"
            )
        with _refusals():
            self._check_ids(submit.token_ids)
            return self._audio.prompt(submit.token_ids, submit.audio)

    def add(self, submit: Submit, prompt: HeardPrompt, *, in_chunks: bool = False) -> None:
        """Hand a request to upstream; `in_chunks`: its input is a stream.

        Raises InvalidRequestError for parameters that upstream refuses.
        """
        with _refusals():
            sampling, pooling = self._params(submit)
            resumable = submit.session or (in_chunks and not self._generates)
            self._client.add_request(self._request(submit, prompt, sampling, pooling, resumable))
            if submit.session:
                self._sessions.open_session(submit.uid, submit.epoch)

    def update(self, update: Update) -> None:
        """New input for a session. Raises InvalidRequestError if it cannot be taken."""
        params = None
        with _refusals():
            self._check_ids(update.token_ids)
            if update.sampling is not None:
                params = self._sampling(update.sampling)
                if params.structured_outputs is not None:
                    raise ValueError("a segment cannot have structured output of its own")
        prompt = PromptUpdate(update.kind, tuple(update.token_ids), update.keep)
        self._sessions.update_session(update.uid, SessionUpdate(update.epoch, prompt, params))

    def interrupt(self, uid: str) -> bool:
        """End a session's running segment; whether there was one."""
        return self._generates and self._sessions.interrupt(uid)

    @property
    def _sessions(self) -> ARMixin:
        scheduler = self.scheduler
        if not isinstance(scheduler, ARMixin):
            raise InvalidRequestError("a generation stage has no sessions")
        return scheduler

    def _params(self, submit: Submit) -> tuple[SamplingParams | None, PoolingParams | None]:
        # A prompt found in the prefix cache is not computed, so its rows would not exist.
        skip = not self._row_edges.isdisjoint(submit.edges) or None
        if not self._generates:
            extra = dict(submit.params)
            return None, PoolingParams(
                task=self._task, extra_kwargs=extra, skip_reading_prefix_cache=skip
            )
        self._check_ids(submit.token_ids)
        sampling = self._sampling(_with_args(submit))
        if skip:
            sampling.skip_reading_prefix_cache = True
        return sampling, None

    def _sampling(self, given: Mapping[str, Any]) -> SamplingParams:
        """Sampling parameters as upstream's own front end would make and check them. ValueError."""
        sampling = SamplingParams(**given)
        if sampling.max_tokens is None:
            raise ValueError("max_tokens is not given")
        sampling.verify(
            self.config.model_config,
            self.config.speculative_config,
            self.config.structured_outputs_config,
            None,
        )
        primary = self._eos if isinstance(self._eos, int) else None
        sampling.update_from_generation_config(self._generation_config, primary)
        return sampling

    def _check_ids(self, token_ids: list[int]) -> None:
        """What upstream's own front end checks and its engine takes for granted. ValueError."""
        vocabulary = self.config.model_config.get_vocab_size()
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocabulary):
            raise ValueError(f"token ids must lie between 0 and {vocabulary - 1}")

    def _request(
        self,
        submit: Submit,
        prompt: HeardPrompt,
        sampling: SamplingParams | None,
        pooling: PoolingParams | None,
        resumable: bool,
    ) -> EngineCoreRequest:
        # Strictly increasing: a gated request finds its place in the queue by it.
        self._arrival = max(time.time(), self._arrival + 1e-6)
        return EngineCoreRequest(
            request_id=submit.uid,
            prompt_token_ids=prompt.token_ids or [0],
            mm_features=prompt.features or None,
            sampling_params=sampling,
            pooling_params=pooling,
            arrival_time=self._arrival,
            lora_request=None,
            # A placeholder must never be found in the prefix cache; its plan brings its own salt.
            cache_salt=submit.uid if submit.waits_for is not None else None,
            data_parallel_rank=None,
            external_req_id=submit.uid,
            priority=submit.priority,
            resumable=resumable,
        )

    def abort(self, uids: list[str]) -> None:
        self._client.abort_requests(uids)

    def pause(self, paused: bool) -> None:
        """Have steps schedule nothing; orders and ends still reach the worker."""
        state = PauseState.PAUSED_ALL if paused else PauseState.UNPAUSED
        if self.scheduler.pause_state != state:
            self.scheduler.set_pause_state(state)

    def give_up_blocks(self) -> None:
        """Before a sleep: nothing runs, and whoever holds blocks computes them again."""
        self.scheduler.give_up_blocks()
        self._client.reset_prefix_cache(reset_running_requests=True)
        self.forget_audio()

    def forget_audio(self) -> None:
        """Have what was heard be heard again: no embedding of a clip is kept.

        After a failed step the scheduler counts on some that the worker has not got.
        """
        if self._audio is not None:
            self._client.reset_encoder_cache()

    def call_workers(self, method: str, *args: object) -> list[Any]:
        """Call a worker's method on every rank; one answer per rank."""
        return self._client.collective_rpc(method, args=args)

    def shutdown(self) -> None:
        if self._audio is not None:
            self._audio.close()
        self._client.shutdown()


def _function(target: str) -> Callable[..., Any]:
    """The function that "module:function" names; of a module, so that it crosses processes."""
    module, _, name = target.partition(":")
    try:
        found: Callable[..., Any] = vars(importlib.import_module(module))[name]
    except (ImportError, KeyError) as error:
        raise TopologyError(f"config {target!r} of a stage cannot be imported: {error}") from error
    return found


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """What upstream refuses, as an error of the caller."""
    try:
        yield
    except (TypeError, ValueError, VLLMValidationError) as error:
        message = " ".join(str(error).split())
        raise InvalidRequestError(f"the engine refuses the request: {message}") from error


def _with_args(submit: Submit) -> Mapping[str, Any]:
    """Sampling parameters; the request's own parameters are visible to logits processors."""
    sampling = dict(submit.sampling)
    if submit.params:
        extra = dict(sampling.get("extra_args") or {})
        sampling["extra_args"] = {**submit.params, **extra}
    return sampling


def _generation_config(model: ModelConfig, spec: StageSpec) -> dict[str, Any]:
    """What is not transformers' default of how the model generates; its end token, above all.

    A checkpoint's own file speaks of the whole. A stage that runs a part of it takes what the
    part's configuration says.
    """
    if spec.hf_config is None:
        return model.try_get_generation_config()
    found: dict[str, Any] = GenerationConfig.from_model_config(model.hf_config).to_diff_dict()
    return found


def _pooling_task(client: InprocClient) -> PoolingTask:
    """The one pooling task that a generation stage's model offers."""
    tasks = [task for task in POOLING_TASKS if task in client.get_supported_tasks()]
    if len(tasks) != 1:
        raise TopologyError(
            f"a generation stage's model must offer one pooling task, this one offers {tasks}"
        )
    return tasks[0]
