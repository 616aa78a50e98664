"""A model says once what it can do; what it promises must be there."""

from __future__ import annotations

import pytest

from antiphon.errors import TopologyError
from antiphon.worker.capabilities import Capabilities, capabilities_of


class Embeds:
    capabilities = Capabilities(prompt_width=4)

    def embed_prompt(self) -> None: ...


class Promises:
    def __init__(self, capabilities: object) -> None:
        self.capabilities = capabilities


def test_a_model_of_vllm_can_do_nothing_of_this() -> None:
    assert capabilities_of(object()) == Capabilities()


def test_a_model_that_keeps_its_word() -> None:
    assert capabilities_of(Embeds()).prompt_width == 4
    caches = Promises(Capabilities(attends_to_caches=True))
    assert capabilities_of(caches).attends_to_caches


@pytest.mark.parametrize(
    ("promised", "method"),
    [
        (Capabilities(prompt_width=0), "embed_prompt"),
        (Capabilities(row_width=3), "condition"),
        (Capabilities(frame_size=2), "predict_frames"),
    ],
)
def test_a_missing_method_is_named(promised: Capabilities, method: str) -> None:
    with pytest.raises(TopologyError, match=f"Promises.capabilities .* no method {method}"):
        capabilities_of(Promises(promised))


def test_capabilities_of_another_type() -> None:
    with pytest.raises(TopologyError, match="capabilities is a dict"):
        capabilities_of(Promises({"frame_size": 2}))
