"""Every time in a deployment is in seconds, and says so."""

from __future__ import annotations

import logging
from typing import get_args

import msgspec
import pytest

from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.pipeline.supervision import Supervision

TIMES = [
    (struct, field.encode_name)
    for struct in (Deployment, StageDeployment, EdgeDeployment, Supervision)
    for field in msgspec.structs.fields(struct)
    if float in (get_args(field.type) or (field.type,))
]


def test_there_are_times() -> None:
    assert len(TIMES) >= 9


@pytest.mark.parametrize(("struct", "name"), TIMES, ids=str)
def test_a_time_names_its_unit_and_is_flagged_if_it_looks_like_another(
    struct: type[msgspec.Struct], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C16: ten minutes in milliseconds would be a week."""
    assert name.endswith("_s")
    with caplog.at_level(logging.WARNING):
        struct(**{name: 60.0})
        assert caplog.text == ""
        struct(**{name: 600_000.0})
    assert f"{name} is 600000 seconds, more than a day" in caplog.text
