"""A pipeline of one stage with a tiny model on two workers, each a process of its own."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.entry import EntryRequest
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.pipeline.supervision import Supervision
from antiphon.pipeline.topology import Entry, Stage, StageKind, Topology

STEP_LIMIT_S = 15.0  # the first step of a new engine takes its time
LENGTH = 200  # tokens of an answer


class ThreeTokens:
    """Any text is the same prompt."""

    def __init__(self, checkpoint: Path) -> None: ...

    def prompts(self, request: EntryRequest) -> Sequence[list[int]]:
        return [[5, 17, 80]]


TOPOLOGY = Topology(
    "two-workers",
    "a tiny model on two workers",
    (
        Stage(
            "thinker",
            StageKind.AR,
            "two_workers:checkpoint",
            output="text",
            sampling={"max_tokens": LENGTH, "temperature": 0.0, "ignore_eos": True},
        ),
    ),
    (),
    (Entry("chat", "thinker", "two_workers:ThreeTokens"),),
)
DEPLOYMENT = Deployment(
    supervision=Supervision(backoff_s=0.05, max_backoff_s=0.05, step_s=STEP_LIMIT_S),
    stages={
        "thinker": StageDeployment(
            device="cpu",
            dtype="float32",
            max_model_len=256,
            max_num_seqs=8,
            max_num_batched_tokens=256,
            kv_cache_bytes="4MiB",
            threads=1,
            engine_args={
                "tensor_parallel_size": 2,
                "distributed_executor_backend": "mp",
                "block_size": 32,
            },
        )
    },
)


def checkpoint(progress: Callable[[str, float | None], None]) -> Path:
    return _checkpoint()


@functools.cache
def _checkpoint() -> Path:
    from tiny import VOCAB, tiny_model

    folder = Path(tempfile.mkdtemp(prefix="antiphon-two-workers-"))
    tiny_model(folder)
    words = {f"w{number}": number for number in range(VOCAB)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))  # noqa: S106  no password
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
