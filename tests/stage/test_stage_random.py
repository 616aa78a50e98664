"""Random arrivals and aborts in a pool that is too small: who is not aborted notices nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from transformers import LlamaForCausalLM

from antiphon.stage.messages import Abort, Aborted
from tiny import Driven, reference, reference_rows
from tiny_adapters import SEEN

NUM_REQUESTS = 40
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Job:
    """One request, and whether its abort is asked for at some moment."""

    uid: str
    prompt: tuple[int, ...]
    max_tokens: int
    edges: tuple[str, ...]


def jobs(rng: random.Random) -> list[Job]:
    return [
        Job(
            f"job{index}",
            tuple(rng.randrange(1, 100) for _ in range(rng.choice([1, 5, 33, 48, 49, 80]))),
            rng.randrange(1, 30),
            rng.choice([(), ("rows",), ("ids",), ("rows", "ids")]),
        )
        for index in range(NUM_REQUESTS)
    ]


@pytest.fixture(scope="module")
def model(model_a: str) -> LlamaForCausalLM:
    return reference(model_a)


def drive(stage: Driven, work: list[Job], rng: random.Random) -> set[str]:
    """Run all of them; the uids whose abort was asked for."""
    aborted: set[str] = set()
    arriving = list(work)
    while arriving or stage.host.has_work:
        if arriving and rng.random() < 0.4:
            job = arriving.pop()
            sampling = {"max_tokens": job.max_tokens}
            stage.submit(job.uid, job.prompt, sampling=sampling, edges=job.edges)
        if rng.random() < 0.1:
            live = sorted(stage.scheduler.requests)
            victims = rng.sample(live, min(len(live), rng.randrange(1, 3)))
            aborted.update(victims)
            stage.host.handle(Abort(victims, len(aborted)))
        if stage.host.has_work:
            stage.host.step()
    return aborted


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", ["cramped", "cramped_overlapped"])
def test_random_aborts(
    name: str, seed: int, model: LlamaForCausalLM, request: pytest.FixtureRequest
) -> None:
    """C2, C5, C28, C34, C117: I1 to I4, and every payload is complete and of its own request."""
    stage: Driven = request.getfixturevalue(name)
    stage.clear()
    rng = random.Random(seed)
    work = jobs(rng)
    aborted = drive(stage, work, rng)
    assert 0 < len(aborted) < NUM_REQUESTS
    acknowledged = [uid for e in stage.events if isinstance(e, Aborted) for uid in e.uids]
    assert set(acknowledged) == aborted
    stage.discard()
    stage.assert_empty()
    assert stage.inspect().connector_entries == 0
    for job in work:
        check(stage, model, job, job.uid in aborted)


def check(stage: Driven, model: LlamaForCausalLM, job: Job, aborted: bool) -> None:
    tokens = stage.tokens(job.uid)
    ends = [end.finish for end in stage.endings(job.uid)]
    edges = sorted(ref.edge for ref in stage.refs() if ref.uid == job.uid)
    if aborted and ends != ["length"]:  # an abort may come when the last token is on its way
        assert ends == []
        assert edges == []
        assert len(tokens) < job.max_tokens
    else:
        assert ends == ["length"]
        assert len(tokens) == job.max_tokens
        assert edges == sorted(job.edges)
        if "ids" in job.edges:
            assert SEEN["ids", job.uid].tokens == tokens
        if "rows" in job.edges:
            expected = reference_rows(model, [*job.prompt, *tokens])[:-1]
            assert torch.allclose(SEEN["rows", job.uid].rows, expected, rtol=0, atol=TOLERANCE)
    whole = [*job.prompt, *tokens]
    with torch.inference_mode():
        best = model.lm_head(reference_rows(model, whole)).argmax(dim=1)
    greedy = best[len(job.prompt) - 1 : -1]
    assert greedy.tolist() == tokens
