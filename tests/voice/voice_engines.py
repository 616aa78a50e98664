"""Stock vLLM engines in this process, made from what the topology says about a stage."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

# vLLM warns about its own dependencies while it is imported and while it builds an engine
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.pooling_params import PoolingParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.core_client import InprocClient
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

from antiphon.pipeline.topology import Stage, StageKind

UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"


@dataclass
class Generated:
    """What an engine gave for one request."""

    tokens: list[int] = field(default_factory=list)
    tensor: torch.Tensor | None = None
    finish: str = ""
    preemptions: int = 0


class StockEngine:
    """One stage on stock vLLM. Never shut down: two engines of one process share torch's process
    groups.
    """

    _ids = itertools.count()
    _alive: ClassVar[list[StockEngine]] = []  # garbage collection would shut them down

    def __init__(self, stage: Stage, model: str, **changes: Any) -> None:
        from antiphon.models.voice.register import register_models

        register_models()
        self._stage = stage
        args = {
            **stage.engine,
            "skip_tokenizer_init": True,
            "disable_log_stats": True,
            "distributed_executor_backend": UNIPROC,
            **changes,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = EngineArgs(model=model, **args).create_engine_config()
            self._client = InprocClient(config, UniProcExecutor, log_stats=False)
        self._alive.append(self)

    def run(self, prompts: Sequence[list[int]], **sampling: Any) -> list[Generated]:
        """Serve all prompts at once, to the end."""
        uids = [f"r{next(self._ids)}" for _ in prompts]
        results = {uid: Generated() for uid in uids}
        for uid, prompt in zip(uids, prompts, strict=True):
            self._client.add_request(self._request(uid, prompt, sampling))
        for _ in self._steps(results):
            pass
        return [results[uid] for uid in uids]

    def _steps(self, results: dict[str, Generated]) -> Iterator[None]:
        requests = self._client.engine_core.scheduler.requests
        while any(not result.finish for result in results.values()):
            for uid in results.keys() & requests.keys():
                results[uid].preemptions = requests[uid].num_preemptions
            for output in self._client.get_output().outputs:
                result = results[output.request_id]
                result.tokens += output.new_token_ids
                if output.pooling_output is not None:
                    result.tensor = output.pooling_output
                if output.finish_reason is not None:
                    result.finish = str(output.finish_reason)
            yield

    def _request(self, uid: str, prompt: list[int], sampling: dict[str, Any]) -> EngineCoreRequest:
        generates = self._stage.kind is StageKind.AR
        return EngineCoreRequest(
            request_id=uid,
            prompt_token_ids=prompt,
            mm_features=None,
            sampling_params=SamplingParams(**{**self._stage.sampling, **sampling})
            if generates
            else None,
            pooling_params=None if generates else PoolingParams(task="plugin"),
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            external_req_id=uid,
        )
