"""A vLLM engine in this process with the stage's scheduler and workers.

Seam: vLLM's own in-process client over an unmodified `EngineCore`. The host steps it; no upstream
loop is repeated. Names used: `InprocClient`, `EngineCore.{scheduler, batch_queue,
request_block_hasher, model_executor}`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.tasks import POOLING_TASKS, PoolingTask
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.executor.abstract import Executor

from antiphon.core.options import PROMPT_EDGE, WHOLE_WEIGHTS, InEdge, StageOptions
from antiphon.core.prompt_plan import PromptUpdate
from antiphon.core.targets import load_target
from antiphon.errors import (
    DeploymentError,
    InputTooLongError,
    InvalidRequestError,
    TopologyError,
)
from antiphon.observe.families import Family
from antiphon.pipeline.topology import StageKind
from antiphon.sched.ar import ARMixin
from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.sched.sessions import SessionUpdate
from antiphon.stage.messages import Submit, Update
from antiphon.stage.requests import Requests, refusals
from antiphon.stage.spec import StageSpec
from antiphon.upstream.audio import AudioProcessor, HeardPrompt, hears
from antiphon.upstream.executor import Workers
from antiphon.upstream.kv_connector import connector_config
from antiphon.upstream.statistics import EngineStatistics


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
            spec.preemption,
            spec.active_streams,
        )
        given = {"load_format": WHOLE_WEIGHTS, **spec.engine_args}
        if spec.hf_config is not None:
            given["hf_overrides"] = load_target(spec.hf_config, f"config of stage {spec.name}")
        args = EngineArgs(
            model=spec.model,
            additional_config=options.to_config(),
            kv_transfer_config=connector_config() if spec.kv_connector else None,
            **given,
        )
        self.config = _config(spec, args)
        if self.config.device_config.device_type == "cpu":
            # Upstream's CPU platform switches the overlap off while it makes the configuration; a
            # deployment may not ask for it there, but what the spec says holds (its scheduler is
            # an AsyncScheduler then), so that overlapping steps can be tested without a GPU.
            overlap = bool(spec.engine_args.get("async_scheduling"))
            self.config.scheduler_config.async_scheduling = overlap
        executor = Executor.get_class(self.config)
        self._client = InprocClient(self.config, executor, log_stats=spec.metrics)
        self._statistics = EngineStatistics(self.config) if spec.metrics else None
        self._generates = spec.kind is StageKind.AR
        self._core = self._client.engine_core
        self.workers = Workers(self._core.model_executor)
        # Made here and not with the first clip: what is wrong with it is an error of the start.
        hearing = self._generates and hears(self.config)
        self._audio = AudioProcessor(self.config) if hearing else None
        task = None if self._generates else _pooling_task(self._client)
        # Edges whose adapters want tensors of every position.
        row_edges = frozenset(self.call_workers("stage_row_edges")[0])
        self._requests = Requests(self.config, spec, task, row_edges)
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
        outputs = self._client.get_output()
        if self._statistics is not None:
            self._statistics.record(outputs)
        return outputs

    def note_endings(self, endings: Iterable[EngineCoreOutput]) -> None:
        """Requests have ended beside a step."""
        if self._statistics is not None:
            self._statistics.record(EngineCoreOutputs(outputs=list(endings)))

    def families(self, sleep_level: int) -> list[Family]:
        """vLLM's own metrics; none unless the stage keeps them. `sleep_level` 0: it is awake."""
        return [] if self._statistics is None else self._statistics.families(sleep_level)

    def check_integrity(self) -> None:
        """Raise AssertionError if stores disagree, or figures are kept of what is long gone."""
        self.scheduler.check_integrity()
        over = not (self.scheduler.requests or self.has_work)
        if over and self._statistics is not None and len(self._statistics):
            raise AssertionError("the figures of a request outlived it")

    def prompt(self, submit: Submit) -> HeardPrompt:
        """The request's prompt as the model sees it. With clips it takes its time: steps wait.

        Raises InvalidRequestError for clips that the stage cannot take, InputTooLongError and
        AdapterError as `AudioProcessor.prompt`.
        """
        if not submit.audio:
            if self._audio is not None and self._audio.cross_attends and not submit.waits_for:
                raise InvalidRequestError("the stage's model writes down what it hears; give audio")
            return HeardPrompt(submit.token_ids, [])
        if self._audio is None or not self._audio.max_clips:
            raise InvalidRequestError(
                "the stage takes no audio: its model has no input for it, or its engine arguments"
                " rule it out (limit_mm_per_prompt, skip_tokenizer_init)"
            )
        with refusals():
            self._requests.check_ids(submit.token_ids)
            return self._audio.prompt(submit.token_ids, submit.audio)

    def add(self, submit: Submit, prompt: HeardPrompt, *, in_chunks: bool = False) -> None:
        """Hand a request to upstream; `in_chunks`: its input is a stream.

        Raises InvalidRequestError for parameters that upstream refuses, InputTooLongError for a
        request that may need more than the stage's cache.
        """
        with refusals():
            request = self._requests.make(submit, prompt, in_chunks=in_chunks)
            if (error := self._size_error(submit, request)) is not None:
                raise error
            self._client.add_request(request)
            if self._statistics is not None:
                self._statistics.added(request)
            if submit.session:
                self._sessions.open_session(submit.uid, submit.epoch)

    def _size_error(self, submit: Submit, request: EngineCoreRequest) -> InputTooLongError | None:
        """Of a prompt that is known; one that is still to come is looked at when it has."""
        params, ids = request.sampling_params, request.prompt_token_ids
        if submit.waits_for is not None or params is None or ids is None:
            return None
        assert params.max_tokens is not None  # noqa: S101  `Requests.sampling` has checked it
        return self.scheduler.size_error(len(ids), params.max_tokens, session=submit.session)

    def update(self, update: Update) -> None:
        """New input for a session. Raises InvalidRequestError if it cannot be taken."""
        params = None
        with refusals():
            self._requests.check_ids(update.token_ids)
            if update.sampling is not None:
                params = self._requests.sampling(update.sampling)
                if params.structured_outputs is not None:
                    raise ValueError("a segment cannot have structured output of its own")
        prompt = PromptUpdate(update.kind, tuple(update.token_ids), update.keep)
        self._sessions.update_session(update.uid, SessionUpdate(update.epoch, prompt, params))
        if self._statistics is not None:
            self._statistics.goes_on(update.uid, time.time())

    def interrupt(self, uid: str) -> bool:
        """End a session's running segment; whether there was one."""
        return self._generates and self._sessions.interrupt(uid)

    @property
    def _sessions(self) -> ARMixin:
        scheduler = self.scheduler
        if not isinstance(scheduler, ARMixin):
            raise InvalidRequestError("a generation stage has no sessions")
        return scheduler

    def abort(self, uids: list[str]) -> None:
        self._client.abort_requests(uids)
        if self._statistics is not None:
            self._statistics.forget(uids)

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


def _config(spec: StageSpec, args: EngineArgs) -> VllmConfig:
    """What upstream makes of the arguments.

    Raises DeploymentError for a length that the checkpoint does not have: upstream's own words are
    of environment variables.
    """
    try:
        return args.create_engine_config()
    except ValueError:
        if args.max_model_len is None:
            raise
        own: dict[str, Any] = {"max_model_len": None}  # the checkpoint's
        config = dataclasses.replace(args, **own).create_engine_config()
        if args.max_model_len <= (limit := config.model_config.max_model_len):
            raise
        raise DeploymentError(
            f"stages.{spec.name}.max_model_len is {args.max_model_len}, and the checkpoint takes"
            f" {limit} tokens: set it to that or less"
        ) from None


def _pooling_task(client: InprocClient) -> PoolingTask:
    """The one pooling task that a generation stage's model offers."""
    tasks = [task for task in POOLING_TASKS if task in client.get_supported_tasks()]
    if len(tasks) != 1:
        raise TopologyError(
            f"a generation stage's model must offer one pooling task, this one offers {tasks}"
        )
    return tasks[0]
