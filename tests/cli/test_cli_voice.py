"""`--voice`: who speaks."""

from __future__ import annotations

import pytest

from antiphon.cli.arguments import spoken_params
from antiphon.cli.chat import Chat
from antiphon.cli.main import build_parser
from antiphon.cli.outputs import Outputs
from antiphon.cli.setup import Setup
from antiphon.errors import InvalidRequestError
from antiphon.models.qwen3_omni.topology import TOPOLOGY
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.registry import load_pipeline
from antiphon.pipeline.topology import Topology


def chat(topology: Topology, *options: str) -> Chat:
    parsed = build_parser().parse_args(["chat", "hello", *options])
    setup = Setup(topology, Deployment(pipeline=topology.name))
    return Chat(parsed, setup, Outputs(("text", "audio")), None)


def test_the_voice_reaches_the_request() -> None:
    request = chat(TOPOLOGY, "--voice", "Ethan").request("hello")
    assert request.params == {"speaker": "Ethan"}
    request.check(TOPOLOGY)


def test_without_it_nothing_is_said_of_speakers() -> None:
    assert chat(TOPOLOGY).request("hello").params == {}
    assert spoken_params(build_parser().parse_args(["say", "hello"])) == {}


def test_say_has_it_too() -> None:
    parsed = build_parser().parse_args(["say", "hello", "--voice", "Ethan"])
    assert spoken_params(parsed) == {"speaker": "Ethan"}


def test_a_pipeline_with_one_voice_refuses_it() -> None:
    with pytest.raises(InvalidRequestError, match="takes no parameter 'speaker'"):
        chat(load_pipeline("voice"), "--voice", "Ethan").request("hello").check(
            load_pipeline("voice")
        )
