"""The names of vLLM that the schedulers rely on; part of the list in `contract`."""

from __future__ import annotations

from antiphon.upstream.symbols import Names, Seam

_SCHEDULER = "vllm.v1.core.sched.scheduler"
_ASYNC = "vllm.v1.core.sched.async_scheduler"
_QUEUE = "vllm.v1.core.sched.request_queue"
_REQUEST = "vllm.v1.request"
_SCHED_OUTPUT = "vllm.v1.core.sched.output"
_OUTPUTS = "vllm.v1.outputs"

SCHEDULER_SEAMS: tuple[Seam, ...] = (
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
        "worst case",
        "a stage that reserves what a request may ever hold counts as upstream allocates: each KV "
        "group has blocks of its own, and a window's are used again",
        "the tokens divided by each group's block size, which counts windows in full",
        (
            Names(
                _SCHEDULER,
                "Scheduler",
                ("attribute num_spec_tokens num_lookahead_tokens deferred_frees policy",),
            ),
            Names(
                "vllm.v1.core.kv_cache_manager",
                "KVCacheManager",
                ("attribute coordinator empty_kv_cache_blocks",),
            ),
            Names(
                "vllm.v1.core.kv_cache_coordinator",
                "KVCacheCoordinator",
                (
                    "method get_num_blocks_to_allocate(request_id, num_tokens, "
                    "new_computed_blocks, num_encoder_tokens, total_computed_tokens, "
                    "num_local_computed_tokens, num_tokens_main_model, apply_admission_cap, "
                    "prefill_end)",
                ),
            ),
            Names(_QUEUE, "SchedulingPolicy", ("attribute PRIORITY",)),
            Names(_REQUEST, "Request", ("attribute priority resumable",)),
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
                _SCHED_OUTPUT,
                "NewRequestData",
                ("field req_id prompt_token_ids prompt_embeds prompt_is_token_ids",),
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
)
