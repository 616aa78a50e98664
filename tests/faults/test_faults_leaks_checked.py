"""The check after every test sees what the shared factories' tests leave in disorder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import checked
from antiphon.sched.ar import ARScheduler
from factory import make_scheduler
from fake_server import FakeServer
from routing import Routing
from worker_bench import Bench

Undo = Callable[[], object]


def scheduler() -> tuple[object, Undo]:
    made = make_scheduler(ARScheduler)
    streams = made.coordinator.inputs.streams
    streams["gone"] = object()
    return made, lambda: streams.pop("gone")


def worker() -> tuple[object, Undo]:
    made = Bench()
    kept = made.io._inlets.prompt_rows
    kept["gone"] = object()
    return made, lambda: kept.pop("gone")


def router() -> tuple[object, Undo]:
    made = Routing()
    labels = made.router._labels
    labels["gone"] = object()
    return made, lambda: labels.pop("gone")


def stage() -> tuple[object, Undo]:
    made = Routing()
    made["talker"].waiting.add("gone")
    return made, lambda: made["talker"].waiting.discard("gone")


@pytest.mark.parametrize("plant", [scheduler, worker, router, stage], ids=lambda p: p.__name__)
def test_a_planted_leak_is_seen(plant: Callable[[], tuple[object, Undo]]) -> None:
    made, undo = plant()
    with pytest.raises(AssertionError):
        checked.check()
    undo()
    checked.checked(made.io if isinstance(made, Bench) else made)
    checked.check()


def test_what_lives_longer_is_checked_after_every_test() -> None:
    class Shared:
        whole = False

        def check_integrity(self) -> None:
            assert self.whole, "planted"

    made, alive = Shared(), True
    checked.shared(made, lambda: alive)
    for _ in range(2):
        with pytest.raises(AssertionError, match="planted"):
            checked.check()
    alive = False
    checked.check()
    made.whole = True


def test_the_server_is_checked_when_it_is_left() -> None:
    server = FakeServer()
    with pytest.raises(AssertionError, match="waiting that is over"), server:
        server.on_loop(lambda: server.service.metrics._waiting.add("gone"))


def test_it_is_part_of_every_test(request: pytest.FixtureRequest) -> None:
    assert "whole_afterwards" in request.fixturenames
