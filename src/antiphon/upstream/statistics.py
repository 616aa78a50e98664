"""Seam: vLLM's own metrics of one engine, fed as vLLM's own front end feeds them.

Reason: upstream keeps its metrics in the front end (`LLMEngine`, `AsyncLLM`), which a stage does
not have. The logger, the figures of one step and the record of a request are upstream's; only what
its output processor does with an engine's outputs is done here. The logger's classes of metrics
are exchanged, as upstream does it itself for Ray. Names used: `PrometheusStatLogger` with
`_gauge_cls`, `_counter_cls` and `_histogram_cls`; `IterationStats`, `RequestStateStats`,
`LoRARequestStates`; `ParentRequest.observe_finished_request`.
Fallback: no `vllm:` families.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.config import VllmConfig
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import IterationStats, LoRARequestStates, RequestStateStats

from antiphon.observe.exposition import families_of
from antiphon.observe.families import Family

# Figures of upstream's front end that a stage has no part in: they would be 0 for ever.
_NOT_FED = frozenset({"vllm:mm_cache_queries", "vllm:mm_cache_hits", "vllm:admission_rejections"})


class _Logger(PrometheusStatLogger):
    """Upstream's logger in a registry of its own, so that engines of one process keep apart.

    What upstream registers by other classes (speculative decoding, MFU, other KV connectors) stays
    in its default registry and is not told.
    """

    def __init__(self, config: VllmConfig) -> None:
        self.registry = CollectorRegistry()
        self._gauge_cls = partial(Gauge, registry=self.registry)  # type: ignore[assignment]
        self._counter_cls = partial(Counter, registry=self.registry)  # type: ignore[assignment]
        self._histogram_cls = partial(Histogram, registry=self.registry)  # type: ignore[assignment]
        super().__init__(config)


@dataclass(slots=True)
class _Request:
    """What upstream's output processor keeps of one request for its figures."""

    figures: RequestStateStats
    prompt_tokens: int
    max_tokens: int | None
    cached_tokens: int = 0
    begins: bool = True  # its prompt, or a segment's, has brought nothing yet


class EngineStatistics:
    """The figures of one engine. Belongs to the thread that steps it."""

    def __init__(self, config: VllmConfig) -> None:
        """`config` is the running engine's: its number of blocks is known."""
        self._logger = _Logger(config)
        self._logger.log_engine_initialized()  # type: ignore[no-untyped-call]
        self._lora = LoRARequestStates()
        self._requests: dict[str, _Request] = {}

    def added(self, request: EngineCoreRequest) -> None:
        """The engine has taken a request."""
        sampling = request.sampling_params
        self._requests[request.request_id] = _Request(
            RequestStateStats(arrival_time=request.arrival_time),
            len(request.prompt_token_ids or ()),
            None if sampling is None else sampling.max_tokens,
        )

    def goes_on(self, uid: str, arrival_s: float) -> None:
        """A session has new input since `arrival_s`, in seconds of the system's clock."""
        if (request := self._requests.get(uid)) is not None:
            request.begins = True
            request.figures.arrival_time = arrival_s

    def forget(self, uids: Iterable[str]) -> None:
        """These are aborted: like upstream, nothing is told of their ends."""
        for uid in uids:
            self._requests.pop(uid, None)

    def record(self, outputs: EngineCoreOutputs) -> None:
        """What a step has brought."""
        iteration = None
        if outputs.outputs:
            iteration = IterationStats()  # type: ignore[no-untyped-call]
            for output in outputs.outputs:
                self._take(iteration, output, outputs.timestamp)
        if iteration is not None or outputs.scheduler_stats is not None:
            self._logger.record(outputs.scheduler_stats, iteration)

    def families(self, sleep_level: int) -> list[Family]:
        """All that there is now. `sleep_level` is 0 while the stage is awake."""
        self._logger.record_sleep_state(int(sleep_level > 0), sleep_level)
        return [f for f in families_of(self._logger.registry) if f.name not in _NOT_FED]

    def __len__(self) -> int:
        """Requests that are known."""
        return len(self._requests)

    def _take(self, iteration: IterationStats, output: EngineCoreOutput, now: float) -> None:
        request = self._requests.get(output.request_id)
        if request is None:
            return
        figures, uid = request.figures, output.request_id
        if output.new_token_ids or output.pooling_output is not None:
            iteration.update_from_output(output, now, request.begins, figures, self._lora, None)
            request.begins = False
            if (prefill := output.prefill_stats) is not None:
                # Of a request that waited for its prompt the number was not known before.
                request.prompt_tokens = prefill.num_prompt_tokens
                request.cached_tokens = prefill.num_cached_tokens
        elif output.events:
            iteration.update_from_events(
                uid, output.events, request.begins, figures, self._lora, None
            )
        if output.finish_reason is None:
            return
        del self._requests[uid]
        # Upstream takes the times of what has run for granted: without a first token its
        # differences are of zeros and times of day.
        if figures.first_token_ts and figures.scheduled_ts:
            iteration.update_from_finished_request(
                output.finish_reason,
                uid,
                request.prompt_tokens,
                request.max_tokens,
                figures,
                request.cached_tokens,
            )
            ParentRequest.observe_finished_request(None, iteration, figures.num_generation_tokens)
