"""The names of vLLM that handing a KV cache over relies on; part of the list in `contract`."""

from __future__ import annotations

from antiphon.upstream.symbols import Names, Seam

_SCHEDULER = "vllm.v1.core.sched.scheduler"
_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base"
_INTERFACE = "vllm.v1.kv_cache_interface"
_BACKENDS = "vllm.v1.attention.backends"
_UPDATE = "method do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)"
_INITIALIZE = (
    "method initialize_kv_cache(kv_cache_config, is_profiling, kv_cache_allocation_context)"
)

CACHE_SEAMS: tuple[Seam, ...] = (
    Seam(
        "KV connector",
        "a cache that another stage has computed becomes part of a request through upstream's "
        "own interface for foreign caches",
        "none: it is upstream's interface for connectors from outside",
        (
            Names(_CONNECTOR, "", ("class KVConnectorMetadata KVConnectorRole SupportsHMA",)),
            Names(
                _CONNECTOR,
                "KVConnectorBase_V1",
                (
                    "method get_num_new_matched_tokens(request, num_computed_tokens)",
                    "method update_state_after_alloc(request, blocks, num_external_tokens)",
                    "method build_connector_meta(scheduler_output)",
                    "method start_load_kv(forward_context, kwargs)",
                    "method wait_for_layer_load(layer_name)",
                    "method save_kv_layer(layer_name, kv_layer, attn_metadata, kwargs)",
                    "method wait_for_save()",
                    "method _get_connector_metadata()",
                ),
            ),
            Names(
                _CONNECTOR,
                "SupportsHMA",
                ("method request_finished_all_groups(request, block_ids)",),
            ),
            Names(
                "vllm.config",
                "KVTransferConfig",
                ("field kv_connector kv_connector_module_path kv_role",),
            ),
        ),
    ),
    Seam(
        "KV hand-off",
        "what is sampled tells when a cache leaves the stage; its blocks are held by references of "
        "their own until a worker has copied them, and then the request stops",
        "upstream's KV connector interface can hold the blocks of a request that has finished",
        (
            Names(
                _SCHEDULER,
                "Scheduler",
                (
                    "method _update_request_with_output(request, new_token_ids, is_stale)",
                    "method get_request_counts()",
                    "attribute connector",
                ),
            ),
            Names(
                "vllm.v1.core.sched.async_scheduler",
                "AsyncScheduler",
                ("method _update_request_with_output(request, new_token_ids, is_stale)",),
            ),
            Names(
                "vllm.v1.outputs",
                "ModelRunnerOutput",
                ("field prompt_logprobs_dict prompt_token_id_logprobs_dict",),
            ),
            Names(_CONNECTOR, "KVConnectorBase_V1", ("method has_pending_push_work()",)),
            Names(
                "vllm.v1.core.kv_cache_manager",
                "KVCacheManager",
                ("method get_blocks(request_id)", "method evict_blocks(block_ids)"),
            ),
            Names("vllm.v1.core.kv_cache_manager", "KVCacheBlocks", ("field blocks",)),
            Names(
                "vllm.v1.core.block_pool",
                "BlockPool",
                ("method touch(blocks)", "method free_blocks(ordered_blocks)"),
            ),
            Names(
                "vllm.v1.core.kv_cache_utils",
                "KVCacheBlock",
                ("field block_id ref_cnt is_null",),
            ),
            Names("vllm.v1.kv_cache_interface", "KVCacheConfig", ("field kv_cache_groups",)),
            Names("vllm.v1.kv_cache_interface", "KVCacheGroupSpec", ("field kv_cache_spec",)),
            Names("vllm.v1.kv_cache_interface", "KVCacheSpec", ("field block_size",)),
        ),
    ),
    Seam(
        "caches of requests",
        "how a backend stores keys and values is found out by writing through its own operation; "
        "a generation model is given the caches that it attends to with its forward",
        "KVConnectorBase_V1.register_kv_caches for the tensors, a wrapper around the model for "
        "its arguments",
        (
            Names(
                "vllm.v1.worker.gpu_model_runner",
                "GPUModelRunner",
                (
                    _INITIALIZE,
                    "method _model_forward(input_ids, positions, intermediate_tensors, "
                    "inputs_embeds, model_kwargs)",
                    "attribute compilation_config model_config vllm_config is_pooling_model",
                ),
            ),
            Names("vllm.v1.worker.cpu_model_runner", "CPUModelRunner", (_INITIALIZE,)),
            Names("vllm.config", "CompilationConfig", ("field static_forward_context",)),
            Names(
                "vllm.config", "ModelConfig", ("field hf_config model revision quantization seed",)
            ),
            Names("vllm.config", "LoadConfig", ("field load_format",)),
            Names("vllm.config", "ParallelConfig", ("attribute world_size",)),
            Names(_INTERFACE, "", ("class FullAttentionSpec KVCacheSpec KVQuantMode",)),
            Names(
                _INTERFACE,
                "FullAttentionSpec",
                (
                    "field block_size num_kv_heads head_size head_size_v dtype kv_quant_mode "
                    "tokens_per_state",
                ),
            ),
            Names(_INTERFACE, "KVQuantMode", ("attribute NONE",)),
            Names(_INTERFACE, "KVCacheGroupSpec", ("field layer_names",)),
            Names(
                "vllm.model_executor.layers.attention.attention",
                "Attention",
                ("attribute impl kv_cache",),
            ),
            Names(f"{_BACKENDS}.cpu_attn", "CPUAttentionBackendImpl", (_UPDATE,)),
            Names(f"{_BACKENDS}.flash_attn", "FlashAttentionImpl", (_UPDATE,)),
        ),
    ),
)
