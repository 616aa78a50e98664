"""What a request tells the pipeline's models beside its text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.orchestrator.api import OmniRequest
from antiphon.orchestrator.intake import Intake
from antiphon.pipeline.entry import EntryRequest
from antiphon.pipeline.topology import Entry
from antiphon.stage.messages import Submit
from kv_pipelines import PAINTING
from routing import STREAMS, Routing
from sample_pipeline import TOPOLOGY

VOICED = replace(
    TOPOLOGY, entries=tuple(replace(e, params=("speaker", "pace")) for e in TOPOLOGY.entries)
)
TOLD: dict[str, Any] = {"speaker": "Ada", "pace": 1.5}


def test_every_unit_is_told() -> None:
    routing = Routing(replace(STREAMS, entries=VOICED.entries))
    routing.submit(params=TOLD)
    assert [s.params for n in VOICED.stage_names for s in routing[n].sent(Submit)] == [TOLD] * 3


def test_companions_are_told_beside_their_number() -> None:
    entries = tuple(replace(e, params=("speaker",)) for e in PAINTING.entries)
    routing = Routing(replace(PAINTING, entries=entries))
    routing.submit(n=2, params={"speaker": "Ada"})
    found = [s.params for s in routing["painter"].sent(Submit)]
    assert found == [{"speaker": "Ada", "companion": index} for index in range(2)]


def test_what_no_model_takes_is_refused() -> None:
    OmniRequest(text="hi", params=TOLD).check(VOICED)
    with pytest.raises(InvalidRequestError, match=r"no parameter 'speker'; did you mean speaker\?"):
        OmniRequest(text="hi", params={"speker": "Ada"}).check(VOICED)
    with pytest.raises(InvalidRequestError, match="no parameter 'speaker'; it takes none"):
        OmniRequest(text="hi", params={"speaker": "Ada"}).check(TOPOLOGY)


@pytest.mark.parametrize("value", [None, ["Ada"], {}])
def test_a_parameter_is_a_text_a_number_or_a_truth_value(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="params"):
        OmniRequest(text="hi", params={"speaker": value}).check(VOICED)  # type: ignore[dict-item]


class Noting:
    """An entry adapter that keeps what it was given."""

    seen: list[EntryRequest] = []  # noqa: RUF012  the orchestrator makes the object

    def __init__(self, checkpoint: Path) -> None:
        self.seen.clear()

    def prompts(self, request: EntryRequest) -> list[list[int]]:
        self.seen.append(request)
        return [[1]]


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": "hello"}]])
def test_entries_are_told(messages: list[dict[str, str]], tmp_path: Path) -> None:
    (chat,) = (entry for entry in VOICED.entries if entry.name == "chat")
    entry = Entry("chat", chat.stage, f"{__name__}:Noting", params=chat.params)
    stages = tuple(replace(stage, output="audio") for stage in VOICED.stages[:1])
    alone = replace(VOICED, stages=stages, edges=(), entries=(entry,))
    intake = Intake(alone, {chat.stage: str(tmp_path)}, None)
    request = OmniRequest(text="hi", messages=messages, params=TOLD)
    intake.prompts(request, request.check(alone))
    assert [dict(seen.params) for seen in Noting.seen] == [TOLD]
