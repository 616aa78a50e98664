"""Side outputs that any ar stage has: token ids, and hidden states after given layers.

Compared with transformers in fp32, up to the order of sums.
"""

from __future__ import annotations

import msgspec
import pytest
import torch
from transformers import LlamaForCausalLM
from vllm.engine.arg_utils import EngineArgs

from antiphon.core.options import OutEdge
from antiphon.errors import DeploymentError, TopologyError
from antiphon.worker.step_outputs import check_embeddings
from engine_pool import EnginePool
from tiny import Driven, engine_args, reference, tiny_spec
from tiny_adapters import SEEN

TOLERANCE = 1e-4
PROMPTS = [[(5 * i + 11 * j) % 100 + 1 for j in range(3 + 13 * i)] for i in range(6)]


@pytest.fixture(scope="module")
def model(model_a: str) -> LlamaForCausalLM:
    return reference(model_a)


@pytest.fixture(params=["layered", "layered_cramped"])
def stage(request: pytest.FixtureRequest) -> Driven:
    found: Driven = request.getfixturevalue(request.param)
    found.clear()
    return found


def side(uid: str, name: str, edge: str = "layers") -> torch.Tensor:
    return torch.cat([step.side[name] for step in SEEN[edge, uid].steps])


def test_ids_and_layers_of_every_position(stage: Driven, model: LlamaForCausalLM) -> None:
    """In a batch; in the cramped stage with prompts in pieces, preemption and overlapping steps."""
    for index, prompt in enumerate(PROMPTS):
        stage.submit(f"r{index}", prompt, sampling={"max_tokens": 50}, edges=("layers",))
    stage.run()
    stage.discard()
    stage.assert_empty()
    for index, prompt in enumerate(PROMPTS):
        uid = f"r{index}"
        tokens = prompt + stage.tokens(uid)
        assert side(uid, "input_ids").tolist() == tokens[:-1]
        with torch.inference_mode():
            ids = torch.tensor([tokens[:-1]])
            states = model.model(ids, output_hidden_states=True).hidden_states
            assert torch.equal(side(uid, "layer.0"), states[0][0])
            assert float((side(uid, "layer.1") - states[1][0]).abs().max()) < TOLERANCE
            last = model.model.norm(side(uid, "layer.2"))  # transformers gives it normalised
        assert float((last - SEEN["layers", uid].rows).abs().max()) < TOLERANCE


def test_layers_alone(layered: Driven) -> None:
    """A request's edge wants fewer of them than another's."""
    layered.clear()
    layered.submit("some", PROMPTS[1], edges=("layer",))
    layered.submit("all", PROMPTS[1], edges=("layers",))
    layered.run()
    layered.discard()
    assert all(step.hidden is None for step in SEEN["layer", "some"].steps)
    assert all(step.side.keys() == {"layer.1"} for step in SEEN["layer", "some"].steps)
    assert torch.equal(side("some", "layer.1", "layer"), side("all", "layer.1"))
    layered.assert_empty()


def test_a_layer_that_the_model_does_not_have(engines: EnginePool, model_a: str) -> None:
    edges = (OutEdge("far", "tiny_adapters:FarLayerOut"),)
    with pytest.raises(TopologyError, match="layer 9 of 2"):
        engines.stage(tiny_spec("far", model_a, "stage_far", outputs=edges))


def test_a_model_that_gives_no_layers(engines: EnginePool, model_gpt2: str) -> None:
    edges = (OutEdge("layer", "tiny_adapters:LayersOnlyOut"),)
    with pytest.raises(TopologyError, match="auxiliary hidden states"):
        engines.stage(tiny_spec("gpt2", model_gpt2, "stage_gpt2", outputs=edges))


def test_a_talker_without_prompt_embeddings(engines: EnginePool, model_talker: str) -> None:
    spec = tiny_spec("bare", model_talker, "stage_bare")
    with pytest.raises(TopologyError, match="enable_prompt_embeds"):
        engines.stage(msgspec.structs.replace(spec, outputs=()))


def test_input_embeddings_of_several_workers(model_a: str) -> None:
    """One of them could not make them again alone: the others would not take part."""
    args = engine_args(tensor_parallel_size=2, distributed_executor_backend="mp")
    config = EngineArgs(model=model_a, **args).create_engine_config()
    with pytest.raises(DeploymentError, match="2 workers compute together"):
        check_embeddings(config)
    check_embeddings(EngineArgs(model=model_a, **engine_args()).create_engine_config())
