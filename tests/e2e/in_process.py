"""Run by test_in_process.py in a process of its own; prints one JSON object.

Engines of one process share vLLM's process-wide state and must be closed together, so this stays
apart from the other tests' engines.
"""

from __future__ import annotations

import json
import os
import time

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.executor.abstract import Executor

from upstream_state import foreign, snapshot

QUESTIONS = (
    "What is the capital of France?",
    "Tell me about the ocean.",
    "Name three colours.",
    "Why is the sky blue?",
    "What is two plus two?",
    "Write a sentence about a cat.",
    "Who wrote Hamlet?",
    "What do bees make?",
)
LENGTH = 24


def stock(model: str, engine_args: dict[str, object]) -> InprocClient:
    """vLLM as it is: its own scheduler and worker."""
    own = ("scheduler_cls", "worker_cls", "additional_config")
    args = {key: value for key, value in engine_args.items() if key not in own}
    config = EngineArgs(model=model, **args).create_engine_config()  # type: ignore[arg-type]
    return InprocClient(config, Executor.get_class(config), log_stats=False)


def run(client: InprocClient, prompts: list[list[int]], tag: str) -> list[list[int]]:
    """Greedy ids of all prompts as one batch."""
    ids: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=LENGTH, temperature=0, detokenize=False, ignore_eos=True)
        uid = f"{tag}{number}"
        ids[uid] = []
        client.add_request(
            EngineCoreRequest(
                request_id=uid,
                prompt_token_ids=prompt,
                mm_features=None,
                sampling_params=params,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
                external_req_id=uid,
            )
        )
    while client.engine_core.scheduler.has_requests():
        for output in client.get_output().outputs:
            ids[output.request_id] += output.new_token_ids
    return list(ids.values())


def main() -> None:
    before = snapshot()
    environment = dict(os.environ)
    from antiphon import Deployment, Omni, OmniRequest
    from antiphon.models.voice.entries import ChatEntry
    from antiphon.models.voice.topology import TOPOLOGY
    from antiphon.models.voice.weights import thinker_checkpoint
    from antiphon.pipeline.defaults import fill_defaults
    from antiphon.pipeline.entry import EntryRequest
    from antiphon.stage.engine import StageEngine
    from antiphon.stage.resolve import resolve_stages

    with Omni("voice", inputs=["text"], in_process=True) as omni:
        reply = omni.generate(OmniRequest(text=QUESTIONS[0]))
        specs = resolve_stages(
            TOPOLOGY, fill_defaults(TOPOLOGY, Deployment(in_process=True)), run="parity"
        )
        entry = ChatEntry(thinker_checkpoint())
        prompts = [entry.prompts(EntryRequest(text=question))[0] for question in QUESTIONS]
        engines = [
            StageEngine(specs["thinker"])._client,
            stock(specs["thinker"].model, specs["thinker"].engine_args),
        ]
        tokens = []
        for client in engines:
            alone = [run(client, [prompt], f"a{n}-")[0] for n, prompt in enumerate(prompts)]
            tokens.append({"alone": alone, "batch": run(client, prompts, "b")})
        changed = [key for key, value in environment.items() if os.environ.get(key) != value]
        report = {
            "text": reply.text,
            "samples": 0 if reply.audio is None else int(reply.audio.size),
            "ours": tokens[0],
            "stock": tokens[1],
            "foreign": foreign(before),
            "environment": changed,
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
