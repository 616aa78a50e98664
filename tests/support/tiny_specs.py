"""Specs of the tiny stages that tests/stage shares."""

from __future__ import annotations

from typing import Any

import msgspec

from antiphon.core.options import OutEdge
from antiphon.stage.spec import StageSpec
from tiny import tiny_spec

# 7 blocks can be given out: 224 tokens for everybody.
CRAMPED: dict[str, Any] = {
    "max_model_len": 192,
    "max_num_batched_tokens": 48,
    "kv_cache_memory_bytes": 8 * 32768,
}


def few_edges(name: str, model: str, **over: Any) -> StageSpec:
    edges = (
        OutEdge("rows", "tiny_adapters:RowsOut"),
        OutEdge("ids", "tiny_adapters:TokensOut"),
        OutEdge("quiet", "worker_bench:QuietOut"),
    )
    return tiny_spec(name, model, "stage_tests", outputs=edges, **over)


def special_spec(name: str, model: str, **over: Any) -> StageSpec:
    names = {"side": "SideOut", "rows": "RowsOut", "missing": "MissingSideOut", "ids": "TokensOut"}
    edges = [OutEdge(edge, f"tiny_adapters:{cls}") for edge, cls in names.items()]
    edges += [
        OutEdge(f"fail-{at}", "tiny_adapters:RowsOut", {"fail": at})
        for at in ("open", "rows", "end")
    ]
    edges.append(OutEdge("fail-tokens", "tiny_adapters:TokensOut", {"fail": "tokens"}))
    return tiny_spec(name, model, f"stage_{name}", outputs=tuple(edges), max_num_seqs=2, **over)


def layered_spec(name: str, model: str, **over: Any) -> StageSpec:
    edges = (
        OutEdge("layers", "tiny_adapters:LayersOut"),
        OutEdge("layer", "tiny_adapters:LayersOnlyOut"),
    )
    return tiny_spec(name, model, f"stage_{name}", outputs=edges, **over)


def talker_spec(name: str, model: str, **over: Any) -> StageSpec:
    edges = (OutEdge("frames", "tiny_adapters:FramesOut"),)
    spec = tiny_spec(
        name, model, f"talker_{name}", outputs=edges, enable_prompt_embeds=True, **over
    )
    return msgspec.structs.replace(spec, prompt_adapter="tiny_talker:TalkerPrompt")
