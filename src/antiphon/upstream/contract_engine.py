"""The names of vLLM that a stage's engine relies on; part of the list in `contract`."""

from __future__ import annotations

from antiphon.upstream.symbols import Names, Seam

_CORE = "vllm.v1.engine.core"
_CLIENT = "vllm.v1.engine.core_client"

ENGINE_SEAMS: tuple[Seam, ...] = (
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
            Names(_CORE, "EngineCore", ("attribute scheduler batch_queue model_executor",)),
            Names(
                "vllm.v1.executor.abstract",
                "Executor",
                ("method get_class(vllm_config)", "method register_failure_callback(callback)"),
            ),
            Names(
                "vllm.v1.executor.multiproc_executor",
                "MultiprocExecutor",
                ("attribute is_failed",),
            ),
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
)
