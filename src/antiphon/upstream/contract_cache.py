"""The names of vLLM that handing a KV cache over relies on; part of the list in `contract`."""

from __future__ import annotations

from antiphon.upstream.symbols import Names, Seam

_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base"

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
)
