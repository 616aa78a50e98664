"""The contract's part about vLLM's own metrics."""

from __future__ import annotations

from antiphon.upstream.symbols import Names, Seam

_LOGGERS = "vllm.v1.metrics.loggers"
_STATS = "vllm.v1.metrics.stats"

METRICS_SEAMS: tuple[Seam, ...] = (
    Seam(
        "metrics",
        "upstream keeps its metrics in a front end that stages do not have; a stage feeds "
        "upstream's own logger with what its engine brings, in a registry of its own",
        "no vllm: families",
        (
            Names(
                _LOGGERS,
                "PrometheusStatLogger",
                (
                    "attribute _gauge_cls _counter_cls _histogram_cls",
                    "method record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)",
                    "method record_sleep_state(sleep, level)",
                    "method log_engine_initialized()",
                ),
            ),
            Names(
                _STATS,
                "IterationStats",
                (
                    "method update_from_output(output, engine_core_timestamp, is_prefilling, "
                    "req_stats, lora_states, lora_name)",
                    "method update_from_events(req_id, events, is_prefilling, req_stats, "
                    "lora_states, lora_name)",
                    "method update_from_finished_request(finish_reason, request_id, "
                    "num_prompt_tokens, max_tokens_param, req_stats, num_cached_tokens)",
                ),
            ),
            Names(
                _STATS,
                "RequestStateStats",
                ("field arrival_time scheduled_ts first_token_ts num_generation_tokens",),
            ),
            Names(_STATS, "", ("class LoRARequestStates",)),
            Names(
                "vllm.v1.engine.parallel_sampling",
                "ParentRequest",
                (
                    "method observe_finished_request(parent_req, iteration_stats, "
                    "num_generation_tokens)",
                ),
            ),
            Names(
                "vllm.v1.engine",
                "EngineCoreOutput",
                ("field prefill_stats",),
            ),
            Names("vllm.v1.engine", "EngineCoreOutputs", ("field scheduler_stats timestamp",)),
            Names(_STATS, "PrefillStats", ("field num_prompt_tokens num_cached_tokens",)),
        ),
    ),
)
