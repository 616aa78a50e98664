"""Every private or unstable name of vLLM that Antiphon relies on.

The one list: `antiphon check`, the contract test and docs/upstream-symbols.md read it, and a test
finds uses and overrides that are not in it. A name stands under the seam that uses it first.
"""

from __future__ import annotations

from antiphon.upstream.contract_cache import CACHE_SEAMS
from antiphon.upstream.symbols import Names, Seam, Symbol

_SCHEDULER = "vllm.v1.core.sched.scheduler"
_ASYNC = "vllm.v1.core.sched.async_scheduler"
_QUEUE = "vllm.v1.core.sched.request_queue"
_REQUEST = "vllm.v1.request"
_SCHED_OUTPUT = "vllm.v1.core.sched.output"
_OUTPUTS = "vllm.v1.outputs"
_RUNNER = "vllm.v1.worker.gpu_model_runner"
_CORE = "vllm.v1.engine.core"
_CLIENT = "vllm.v1.engine.core_client"
_INPUT_BATCH = "vllm.v1.worker.gpu_input_batch"
_LOGITS = "vllm.v1.sample.logits_processor.interface"

SEAMS: tuple[Seam, ...] = (
    Seam(
        "scheduler hooks",
        "gates, orders for the worker and typed errors are added around upstream's own loop; "
        "each override calls super()",
        "upstream's KV connector interface can hold and finish requests, with one more lookup "
        "per request and step",
        (
            Names(
                _SCHEDULER,
                "Scheduler",
                (
                    "method schedule(throttle_prefills)",
                    "method update_from_output(scheduler_output, model_runner_output)",
                    "method finish_requests(request_ids, finished_status)",
                    "method has_requests()",
                    "method _enqueue_waiting_request(request)",
                    "method _handle_blocked_waiting_request(request)",
                    "method _free_request(request, delay_free_blocks)",
                ),
            ),
            Names(_ASYNC, "", ("class AsyncScheduler",)),
        ),
    ),
    Seam(
        "scheduler state",
        "read to find a request, to count what is running and to know the limits",
        "a table of our own, filled by the hooks",
        (
            Names(
                _SCHEDULER,
                "Scheduler",
                (
                    "attribute requests waiting running max_model_len max_num_scheduled_tokens "
                    "vllm_config kv_cache_config kv_cache_manager finished_req_ids",
                    "method get_num_unfinished_requests()",
                    "method has_finished_requests()",
                ),
            ),
            Names("vllm.v1.core.kv_cache_manager", "KVCacheManager", ("attribute block_pool",)),
            Names("vllm.v1.core.block_pool", "BlockPool", ("method get_num_free_blocks()",)),
            Names("vllm.v1.kv_cache_interface", "KVCacheConfig", ("field num_blocks",)),
        ),
    ),
    Seam(
        "request state",
        "a gated request enters the scheduler with a placeholder and gets its prompt, and its "
        "place in the queue, when its stage input has arrived",
        "a new Request object in place of the old one",
        (
            Names(
                _REQUEST,
                "Request",
                (
                    "attribute _all_token_ids _output_token_ids all_token_ids block_hashes "
                    "prompt_token_ids num_prompt_tokens num_tokens num_output_tokens "
                    "num_computed_tokens num_in_flight_tokens num_output_placeholders status "
                    "sampling_params pooling_params max_tokens arrival_time cache_salt "
                    "client_index trace_headers stop_reason num_stale_output_tokens "
                    "drop_stale_output",
                    "method update_block_hashes()",
                    "method take_events()",
                    "method get_finished_reason()",
                    "method is_finished()",
                ),
            ),
            Names(
                _REQUEST,
                "RequestStatus",
                (
                    "attribute WAITING RUNNING PREEMPTED FINISHED_STOPPED FINISHED_LENGTH_CAPPED "
                    "FINISHED_REPETITION FINISHED_ERROR",
                ),
            ),
            Names(_QUEUE, "", ("class FCFSRequestQueue RequestQueue",)),
            Names(_QUEUE, "RequestQueue", ("method add_request(request)",)),
        ),
    ),
    Seam(
        "parking",
        "a request whose next step lacks its input, or room for its output, is passed over: a "
        "running one by the step from which it is eligible, any other by leaving the queues",
        "_handle_blocked_waiting_request, which costs a look per step and request",
        (
            Names(
                _SCHEDULER,
                "Scheduler",
                (
                    "attribute kv_holding_waiting deferred_waiting pause_state block_size "
                    "max_num_running_reqs",
                    "method _holds_kv_blocks(request)",
                    "method _is_blocked_waiting_status(status)",
                    "method _preempt_request(request, timestamp, drop_stale_output)",
                ),
            ),
            Names("vllm.v1.core.sched.interface", "PauseState", ("attribute UNPAUSED",)),
            Names(_REQUEST, "Request", ("attribute next_decode_eligible_step",)),
            Names(_QUEUE, "RequestQueue", ("method remove_requests(requests)",)),
        ),
    ),
    Seam(
        "sessions",
        "a resumable request that stops is kept, with what is in flight for it rolled back; it "
        "goes on with new input, or with the next chunk of a generation stage",
        "a request of its own for each segment, which computes the history again",
        (
            Names(
                _SCHEDULER,
                "Scheduler",
                (
                    "method _handle_stopped_request(request)",
                    "method _free_request_blocks(request)",
                    "attribute _inflight_prefills num_waiting_for_streaming_input",
                ),
            ),
            Names(_REQUEST, "RequestStatus", ("attribute WAITING_FOR_STREAMING_REQ",)),
            Names("vllm.v1.engine", "EngineCoreRequest", ("field resumable",)),
            Names("vllm.pooling_params", "PoolingParams", ("method clone()",)),
        ),
    ),
    Seam(
        "envelopes",
        "what travels between scheduler and worker beside upstream's fields is one more field "
        "of a subclass, built from vars() of upstream's object",
        "none needed while both stay dataclasses",
        (
            Names(_SCHED_OUTPUT, "", ("class SchedulerOutput",)),
            Names(
                _SCHED_OUTPUT,
                "SchedulerOutput",
                ("field scheduled_new_reqs num_scheduled_tokens",),
            ),
            Names(
                _SCHED_OUTPUT, "NewRequestData", ("field req_id prompt_token_ids prompt_embeds",)
            ),
            Names(_OUTPUTS, "", ("class ModelRunnerOutput AsyncModelRunnerOutput",)),
            Names(
                _OUTPUTS, "ModelRunnerOutput", ("field req_id_to_index sampled_token_ids logprobs",)
            ),
            Names(_OUTPUTS, "AsyncModelRunnerOutput", ("method get_output()",)),
        ),
    ),
    Seam(
        "sampled logprobs",
        "their contract is checked before upstream's loop reads them",
        "none: without the arrays it cannot be checked",
        (
            Names(
                _OUTPUTS,
                "LogprobsLists",
                ("field logprob_token_ids logprobs cu_num_generated_tokens",),
            ),
        ),
    ),
    Seam(
        "engine outputs",
        "requests that end outside a step are reported with the step's own outputs",
        "the host reports them beside upstream's outputs",
        (
            Names(
                "vllm.v1.engine",
                "EngineCoreOutput",
                (
                    "field request_id new_token_ids pooling_output finish_reason stop_reason "
                    "events trace_headers",
                ),
            ),
            Names("vllm.v1.engine", "EngineCoreOutputs", ("field outputs",)),
            Names("vllm.v1.engine", "FinishReason", ("attribute ERROR",)),
        ),
    ),
    Seam(
        "runner version",
        "the stage's runner extends the v1 model runner, so scheduler and worker must use that one",
        "a runner on v2's ModelState",
        (
            Names(
                "vllm.config",
                "VllmConfig",
                ("attribute use_v2_model_runner", "field additional_config"),
            ),
        ),
    ),
    Seam(
        "model runner",
        "a step's rows are taken between execute_model and sample_tokens; a request's own rows "
        "go in when its state is made, or with the embeddings of the tokens that it feeds back, "
        "and are dropped when it is removed",
        "forward hooks on the model",
        (
            Names(
                _RUNNER,
                "GPUModelRunner",
                (
                    "method execute_model(scheduler_output, intermediate_tensors)",
                    "method sample_tokens(grammar_output)",
                    "method load_model(load_dummy_weights, model)",
                    "method get_model()",
                    "method _update_states(scheduler_output)",
                    "method _on_request_state_removed(req_id, req_state)",
                    "method _preprocess(scheduler_output, num_input_tokens, intermediate_tensors)",
                    "attribute execute_model_state input_batch requests model dtype device "
                    "query_start_loc",
                ),
            ),
            Names(_RUNNER, "ExecuteModelState", ("field hidden_states",)),
            Names(
                _INPUT_BATCH,
                "InputBatch",
                ("attribute req_ids num_prompt_tokens num_computed_tokens_cpu",),
            ),
            Names(
                "vllm.config",
                "ModelConfig",
                ("field enable_prompt_embeds", "method get_inputs_embeds_size()"),
            ),
            Names("vllm.v1.utils", "CpuGpuBuffer", ("attribute np",)),
            Names(
                "vllm.v1.worker.cpu_model_runner",
                "CPUModelRunner",
                ("method load_model(load_dummy_weights)", "method get_model()"),
            ),
        ),
    ),
    Seam(
        "seeded sampling on CPU",
        "a sample of a partial prefill is taken back by the generator's offset, which CPU "
        "generators lack; ours goes back by state",
        "none needed once upstream goes back by state",
        (
            Names(_RUNNER, "GPUModelRunner", ("method _sample(logits, spec_decode_metadata)",)),
            Names(_INPUT_BATCH, "InputBatch", ("attribute generators req_id_to_index",)),
            Names(_INPUT_BATCH, "CachedRequestState", ("field generator",)),
        ),
    ),
    Seam(
        "workers",
        "upstream has no setting for the runner's class: the GPU worker makes it in a method of "
        "its own, the CPU worker inside init_device",
        "a worker that repeats init_device's few lines",
        (
            Names(
                "vllm.v1.worker.cpu_worker",
                "CPUWorker",
                (
                    "method init_device()",
                    "method sleep(level)",
                    "method wake_up(tags)",
                    "method shutdown()",
                    "attribute model_runner vllm_config",
                ),
            ),
            Names(
                "vllm.v1.worker.gpu_worker",
                "Worker",
                (
                    "method _make_model_runner()",
                    "method sleep(level)",
                    "method wake_up(tags)",
                    "method shutdown()",
                    "method reload_weights(args, kwargs)",
                    "attribute model_runner vllm_config device",
                ),
            ),
        ),
    ),
    Seam(
        "engine",
        "a stage owns one EngineCore in its own process and steps it in its own loop",
        "EngineCoreProc and its message protocol",
        (
            Names(
                _CLIENT,
                "InprocClient",
                (
                    "attribute engine_core",
                    "method get_output()",
                    "method get_supported_tasks()",
                    "method add_request(request)",
                    "method abort_requests(request_ids)",
                    "method collective_rpc(method, timeout, args, kwargs)",
                    "method reset_prefix_cache(reset_running_requests, reset_connector)",
                    "method shutdown(timeout)",
                ),
            ),
            Names(_CORE, "EngineCore", ("attribute scheduler batch_queue",)),
            Names("vllm.v1.executor.abstract", "Executor", ("method get_class(vllm_config)",)),
            Names("vllm.exceptions", "", ("class VLLMValidationError",)),
            Names("vllm.tasks", "", ("attribute POOLING_TASKS",)),
            Names("vllm.v1.executor.uniproc_executor", "", ("class UniProcExecutor",)),
            Names(
                "vllm.v1.engine",
                "EngineCoreRequest",
                (
                    "field request_id prompt_token_ids mm_features sampling_params pooling_params "
                    "arrival_time lora_request cache_salt data_parallel_rank external_req_id "
                    "priority",
                ),
            ),
            Names(
                "vllm.engine.arg_utils",
                "EngineArgs",
                ("method create_engine_config(usage_context, headless)",),
            ),
            Names("vllm.config", "ModelConfig", ("method try_get_generation_config()",)),
            Names(
                "vllm.sampling_params",
                "SamplingParams",
                (
                    "method update_from_generation_config(generation_config, eos_token_id)",
                    "field extra_args",
                ),
            ),
            Names("vllm.pooling_params", "PoolingParams", ("field task extra_kwargs",)),
        ),
    ),
    Seam(
        "stage models",
        "models that vLLM does not know are registered by name; the talker's grammar is a "
        "logits processor, the vocoder a pooling model without attention",
        "none needed: these are upstream's extension interfaces, listed because they change "
        "between releases",
        (
            Names(
                "vllm.model_executor.models.registry",
                "_ModelRegistry",
                ("method register_model(model_arch, model_cls)",),
            ),
            Names(
                _LOGITS,
                "LogitsProcessor",
                (
                    "method validate_params(sampling_params)",
                    "method apply(logits)",
                    "method is_argmax_invariant()",
                    "method update_state(batch_update)",
                ),
            ),
            Names(_LOGITS, "", ("class BatchUpdate",)),
            Names(
                "vllm.v1.sample.logits_processor.builtin",
                "",
                ("function process_dict_updates(req_entries, batch_update, new_state)",),
            ),
            Names("vllm.model_executor.layers.pooler", "", ("class Pooler",)),
            Names("vllm.model_executor.models.interfaces", "", ("class IsAttentionFree",)),
            Names(
                "vllm.model_executor.models.interfaces_base", "", ("function attn_type(attn_type)",)
            ),
            Names("vllm.model_executor.models.utils", "", ("class AutoWeightsLoader",)),
            Names("vllm.v1.pool.metadata", "", ("class PoolingMetadata",)),
            Names(
                "vllm.v1.pool.metadata",
                "PoolingMetadata",
                ("field prompt_lens pooling_params pooling_states",),
            ),
            Names("vllm.v1.pool.metadata", "PoolingStates", ("attribute hidden_states_cache",)),
        ),
    ),
    *CACHE_SEAMS,
)

SYMBOLS: tuple[Symbol, ...] = tuple(symbol for seam in SEAMS for symbol in seam.symbols())
