"""Every private or unstable name of vLLM that Antiphon relies on.

The one list: `antiphon check`, the contract test and docs/upstream-symbols.md read it, and a test
finds uses and overrides that are not in it. A name stands under the seam that uses it first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["class", "method", "attribute", "field", "function"]


@dataclass(frozen=True, slots=True)
class Symbol:
    """One name, why it is used and what would replace it.

    `signature` holds the parameter names without `self`, where they are relied on. An `attribute`
    is set on instances or the class; a `field` is one of a dataclass, struct or named tuple.
    """

    module: str
    qualname: str
    kind: Kind
    signature: tuple[str, ...] | None
    seam: str
    reason: str
    fallback: str


@dataclass(frozen=True, slots=True)
class Seam:
    """One place where the project hooks into vLLM."""

    name: str
    reason: str
    fallback: str
    names: tuple[_Names, ...]

    def symbols(self) -> Iterator[Symbol]:
        for group in self.names:
            yield from group.symbols(self)


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of one owner, given as `kind name(parameter, …)`."""

    module: str
    owner: str  # class, or "" for names of the module itself
    entries: tuple[str, ...]

    def symbols(self, seam: Seam) -> Iterator[Symbol]:
        for entry in self.entries:
            kind, _, rest = entry.partition(" ")
            name, bracket, parameters = rest.rstrip(")").partition("(")
            signature = tuple(p.strip() for p in parameters.split(",") if p.strip())
            yield Symbol(
                module=self.module,
                qualname=f"{self.owner}.{name}" if self.owner else name,
                kind=_kind(kind),
                signature=signature if bracket else None,
                seam=seam.name,
                reason=seam.reason,
                fallback=seam.fallback,
            )


def _kind(word: str) -> Kind:
    match word:
        case "class" | "method" | "attribute" | "field" | "function":
            return word
    raise AssertionError(f"unknown kind {word!r}")


_SCHEDULER = "vllm.v1.core.sched.scheduler"
_ASYNC = "vllm.v1.core.sched.async_scheduler"
_QUEUE = "vllm.v1.core.sched.request_queue"
_REQUEST = "vllm.v1.request"
_OUTPUTS = "vllm.v1.outputs"
_RUNNER = "vllm.v1.worker.gpu_model_runner"
_CORE = "vllm.v1.engine.core"
_CLIENT = "vllm.v1.engine.core_client"

SEAMS: tuple[Seam, ...] = (
    Seam(
        "scheduler hooks",
        "gates, orders for the worker and typed errors are added around upstream's own loop; "
        "each override calls super()",
        "upstream's KV connector interface can hold and finish requests, with one more lookup "
        "per request and step",
        (
            _Names(
                _SCHEDULER,
                "Scheduler",
                (
                    "method schedule(throttle_prefills)",
                    "method update_from_output(scheduler_output, model_runner_output)",
                    "method add_request(request)",
                    "method finish_requests(request_ids, finished_status)",
                    "method has_requests()",
                    "method get_num_unfinished_requests()",
                    "method _enqueue_waiting_request(request)",
                    "method _handle_blocked_waiting_request(request)",
                    "method _free_request(request, delay_free_blocks)",
                ),
            ),
            _Names(_ASYNC, "", ("class AsyncScheduler",)),
        ),
    ),
    Seam(
        "scheduler state",
        "read to find a request, to count what is running and to know the limits",
        "a table of our own, filled by add_request and _free_request",
        (
            _Names(
                _SCHEDULER,
                "Scheduler",
                (
                    "attribute requests",
                    "attribute waiting",
                    "attribute running",
                    "attribute max_model_len",
                    "attribute max_num_scheduled_tokens",
                    "attribute vllm_config",
                    "attribute kv_cache_manager",
                    "attribute current_step",
                ),
            ),
        ),
    ),
    Seam(
        "request state",
        "a gated request enters the scheduler with a placeholder and gets its prompt when its "
        "stage input has arrived; a running one whose next input row is missing is passed over",
        "a new Request object in place of the old one",
        (
            _Names(
                _REQUEST,
                "Request",
                (
                    "attribute _all_token_ids",
                    "attribute block_hashes",
                    "attribute prompt_token_ids",
                    "attribute num_prompt_tokens",
                    "attribute cache_salt",
                    "attribute num_computed_tokens",
                    "attribute num_in_flight_tokens",
                    "attribute next_decode_eligible_step",
                    "method update_block_hashes()",
                    "method take_events()",
                    "method get_finished_reason()",
                ),
            ),
            _Names(_REQUEST, "", ("class RequestStatus",)),
            _Names(_QUEUE, "", ("class FCFSRequestQueue", "class RequestQueue")),
        ),
    ),
    Seam(
        "envelopes",
        "what travels between scheduler and worker beside upstream's fields is one more field of "
        "a subclass, built from vars() of upstream's object",
        "none needed while both stay dataclasses",
        (
            _Names("vllm.v1.core.sched.output", "", ("class SchedulerOutput",)),
            _Names(
                "vllm.v1.core.sched.output",
                "SchedulerOutput",
                (
                    "field scheduled_new_reqs",
                    "field scheduled_cached_reqs",
                    "field num_scheduled_tokens",
                    "field total_num_scheduled_tokens",
                    "field finished_req_ids",
                ),
            ),
            _Names(
                _OUTPUTS,
                "",
                ("class ModelRunnerOutput", "attribute EMPTY_MODEL_RUNNER_OUTPUT"),
            ),
            _Names(
                _OUTPUTS,
                "ModelRunnerOutput",
                (
                    "field req_ids",
                    "field req_id_to_index",
                    "field sampled_token_ids",
                    "field logprobs",
                    "field pooler_output",
                ),
            ),
            _Names(_OUTPUTS, "AsyncModelRunnerOutput", ("method get_output()",)),
        ),
    ),
    Seam(
        "sampled logprobs",
        "their contract is checked before upstream's loop reads them",
        "none: without the arrays it cannot be checked",
        (
            _Names(
                _OUTPUTS,
                "LogprobsLists",
                (
                    "field logprob_token_ids",
                    "field logprobs",
                    "field cu_num_generated_tokens",
                ),
            ),
        ),
    ),
    Seam(
        "engine outputs",
        "requests that end outside a step are reported with the step's own outputs",
        "the host reports them beside upstream's outputs",
        (
            _Names(
                "vllm.v1.engine",
                "EngineCoreOutput",
                (
                    "field request_id",
                    "field new_token_ids",
                    "field pooling_output",
                    "field finish_reason",
                    "field stop_reason",
                    "field events",
                    "field trace_headers",
                ),
            ),
            _Names("vllm.v1.engine", "EngineCoreOutputs", ("field outputs",)),
            _Names("vllm.v1.engine", "", ("class FinishReason",)),
        ),
    ),
    Seam(
        "runner version",
        "the stage's runner extends the v1 model runner, so scheduler and worker must use that one",
        "a runner on v2's ModelState",
        (_Names("vllm.config", "VllmConfig", ("attribute use_v2_model_runner",)),),
    ),
    Seam(
        "model runner",
        "a step's rows are taken between execute_model and sample_tokens; a request's own rows go "
        "in when its state is made and are dropped when it is removed",
        "forward hooks on the model",
        (
            _Names(
                _RUNNER,
                "GPUModelRunner",
                (
                    "method execute_model(scheduler_output, intermediate_tensors)",
                    "method sample_tokens(grammar_output)",
                    "method _update_states(scheduler_output)",
                    "method _on_request_state_removed(req_id, req_state)",
                    "attribute execute_model_state",
                    "attribute input_batch",
                    "attribute requests",
                ),
            ),
            _Names(
                _RUNNER,
                "ExecuteModelState",
                (
                    "field scheduler_output",
                    "field hidden_states",
                    "field sample_hidden_states",
                    "field aux_hidden_states",
                ),
            ),
            _Names("vllm.v1.worker.cpu_model_runner", "", ("class CPUModelRunner",)),
        ),
    ),
    Seam(
        "workers",
        "upstream has no setting for the runner's class: the GPU worker makes it in a method of "
        "its own, the CPU worker inside init_device",
        "a worker that repeats init_device's few lines",
        (
            _Names(
                "vllm.v1.worker.cpu_worker",
                "CPUWorker",
                ("method init_device()", "attribute model_runner"),
            ),
            _Names("vllm.v1.worker.gpu_worker", "Worker", ("method _make_model_runner()",)),
        ),
    ),
    Seam(
        "engine",
        "a stage owns one EngineCore in its own process and steps it in its own loop",
        "EngineCoreProc and its message protocol",
        (
            _Names(
                _CLIENT,
                "InprocClient",
                (
                    "attribute engine_core",
                    "method get_output()",
                    "method add_request(request)",
                    "method abort_requests(request_ids)",
                    "method shutdown(timeout)",
                ),
            ),
            _Names(
                _CORE,
                "EngineCore",
                (
                    "attribute scheduler",
                    "attribute step_fn",
                    "attribute batch_queue",
                    "method post_step(model_executed)",
                    "method preprocess_add_request(request)",
                ),
            ),
            _Names("vllm.v1.executor.uniproc_executor", "", ("class UniProcExecutor",)),
            _Names("vllm.pooling_params", "PoolingParams", ("field task", "field extra_kwargs")),
        ),
    ),
)

SYMBOLS: tuple[Symbol, ...] = tuple(symbol for seam in SEAMS for symbol in seam.symbols())
