"""What the two checkpoints' files say, and what is refused about them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from antiphon.errors import DeploymentError, ModelUnavailableError, TopologyError
from antiphon.models.codec_lm import codecs, tokens
from antiphon.models.codec_lm.codecs import CodecFacts, read_codec
from antiphon.models.codec_lm.configs import codec_config
from antiphon.models.codec_lm.tokens import SpeechTokens, longest_input, read_speech_tokens
from antiphon.models.codec_lm.topology import TOPOLOGY
from antiphon.pipeline.defaults import fill_defaults
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.facts import CheckpointFacts, completed
from codec_lm_tiny import EOT, FIRST_CODE, MAX_POSITIONS, NUM_CODES, SPEECH_END, amend


@pytest.fixture
def lm(checkpoints: dict[str, str], tmp_path: Path) -> Path:
    """A language model whose files a test may change."""
    return Path(shutil.copytree(checkpoints["llama"], tmp_path / "lm"))


@pytest.fixture
def codec(checkpoints: dict[str, str], tmp_path: Path) -> Path:
    """A codec whose files a test may change."""
    return Path(shutil.copytree(checkpoints["xcodec2"], tmp_path / "codec"))


def rename(folder: Path, old: str, new: str) -> None:
    """Other names of tokens."""
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace(old, new))


def test_names_in_the_tokenizer_say_where_the_codes_are(lm: Path) -> None:
    assert read_speech_tokens(lm) == SpeechTokens(FIRST_CODE, NUM_CODES, (SPEECH_END,))
    assert longest_input(lm) == MAX_POSITIONS - 1


def test_other_names_for_codes(lm: Path) -> None:
    rename(lm, "<|s_", "<|speech_")
    assert read_speech_tokens(lm).first == FIRST_CODE


def test_the_config_can_say_it_instead(lm: Path) -> None:
    """For a vocabulary with other names, or none at all."""
    amend(lm, first_code_id=12, num_codes=34)
    (lm / "tokenizer.json").unlink()
    assert read_speech_tokens(lm) == SpeechTokens(12, 34, (EOT,))


def test_without_a_token_of_its_own_a_speech_ends_with_the_checkpoints(lm: Path) -> None:
    rename(lm, "<|SPEECH_GENERATION_END|>", "<|something|>")
    assert read_speech_tokens(lm).ends == (EOT,)
    (lm / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    assert read_speech_tokens(lm).ends == (3, 4)
    (lm / "generation_config.json").unlink()
    amend(lm, eos_token_id=None)
    with pytest.raises(ModelUnavailableError, match="what ends a speech"):
        read_speech_tokens(lm)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<|s_", "<|x_", "has none"),
        ("<|s_7|>", "<|speech_7|>", r"<\|s_N\|> and <\|speech_N\|>"),
        ("<|s_7|>", "<|s_900|>", "not numbered like their ids"),
    ],
)
def test_a_vocabulary_without_one_block_of_codes(
    lm: Path, old: str, new: str, message: str
) -> None:
    rename(lm, old, new)
    with pytest.raises(ModelUnavailableError, match=message):
        read_speech_tokens(lm)


@pytest.mark.parametrize("given", [{"num_codes": 4}, {"first_code_id": "1", "num_codes": 4}])
def test_half_of_what_a_config_has_to_say(lm: Path, given: dict[str, Any]) -> None:
    amend(lm, **given)
    with pytest.raises(ModelUnavailableError, match="give both as numbers"):
        read_speech_tokens(lm)


@pytest.mark.parametrize(("name", "rate"), [("xcodec2", 16_000), ("neucodec", 24_000)])
def test_a_codecs_config(checkpoints: dict[str, str], name: str, rate: int) -> None:
    assert read_codec(checkpoints[name]) == CodecFacts(NUM_CODES, rate)


def test_a_checkpoint_that_is_no_codec(checkpoints: dict[str, str]) -> None:
    with pytest.raises(ModelUnavailableError, match="'llama', which is no codec"):
        read_codec(checkpoints["llama"])
    with pytest.raises(ModelUnavailableError, match="'llama', which is no codec"):
        codec_config(AutoConfig.from_pretrained(checkpoints["llama"]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampling_rate": None}, "sampling_rate is None"),
        ({"quantization_levels": [4, 0]}, "no list of quantization_levels"),
    ],
)
def test_a_codec_without_what_is_needed(codec: Path, given: dict[str, Any], message: str) -> None:
    amend(codec, **given)
    with pytest.raises(ModelUnavailableError, match=message):
        codecs.checkpoint_facts(codec)


def test_checkpoints_complete_the_topology(checkpoints: dict[str, str]) -> None:
    """The codec's rate, and what the language model stops at; without folders all stays."""
    models = {"lm": checkpoints["llama"], "codec": checkpoints["neucodec"]}
    found = completed(TOPOLOGY, models)
    assert found.sample_rate == 24_000
    assert found.stage("lm").sampling["stop_token_ids"] == [SPEECH_END]
    assert found.stage("lm").sampling["max_tokens"] == TOPOLOGY.stage("lm").sampling["max_tokens"]
    assert completed(found, models) == found
    assert completed(TOPOLOGY, {}) == TOPOLOGY


def test_facts_that_cannot_be_had(checkpoints: dict[str, str]) -> None:
    import dataclasses

    for target, message in (
        ("antiphon.models.codec_lm.tokens:nothing", "cannot be imported"),
        ("antiphon.models.codec_lm.tokens:longest_input", "returned a int"),
    ):
        stages = [dataclasses.replace(s, facts=target) for s in TOPOLOGY.stages if s.name == "lm"]
        wrong = dataclasses.replace(TOPOLOGY, stages=(*stages, TOPOLOGY.stage("codec")))
        with pytest.raises(TopologyError, match=message):
            completed(wrong, {"lm": checkpoints["llama"]})
    assert tokens.checkpoint_facts(Path(checkpoints["llama"])) == CheckpointFacts(
        {"stop_token_ids": [SPEECH_END]}
    )


def test_an_operator_may_have_it_streamed() -> None:
    edge = EdgeDeployment(mode="stream", options={"right_context": 4})
    filled = fill_defaults(TOPOLOGY, Deployment(pipeline="codec-lm", edges={"codes": edge}))
    assert filled.edges["codes"].mode == "stream"
    assert filled.edges["codes"].options["right_context"] == 4
    edges = {"codes": EdgeDeployment(options={"rightcontext": 4})}
    with pytest.raises(DeploymentError, match="no such option"):
        fill_defaults(TOPOLOGY, Deployment(pipeline="codec-lm", edges=edges))
