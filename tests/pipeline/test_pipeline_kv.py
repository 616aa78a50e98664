"""Edges that hand a KV cache on: what is declared, deployed, drawn, and what stages are told."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import msgspec.yaml
import pytest

from antiphon.core.kv_handoff import KvSettings, KvTransfer
from antiphon.errors import DeploymentError, TopologyError
from antiphon.pipeline import docs
from antiphon.pipeline.defaults import fill_defaults
from antiphon.pipeline.deployed import deployed, kv_settings
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.deployment_file import parse_deployment
from antiphon.pipeline.draw import draw
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.printing import config_yaml
from antiphon.pipeline.topology import EdgeMode, StageKind, Topology
from antiphon.stage.resolve import resolve_stages
from antiphon.stage.spec import StageSpec
from kv_pipelines import CACHE, DECODE, HALVES, PAINTER, PAINTING, PREFILL, SCENE, THINKER
from sample_pipeline import TOPOLOGY

KV_FIELDS = ("on_failure", "ack_timeout_s", "lease_s", "checksum")

# --- declared -------------------------------------------------------------------------------------

SECOND = replace(DECODE, name="second", output="words")

WRONG = {
    "cache in parts": (
        HALVES,
        {"edges": (replace(CACHE, split=True),)},
        "edge cache hands a KV cache on.*is split into parts; remove split or kv",
    ),
    "cache as a stream": (
        HALVES,
        {"edges": (replace(CACHE, mode=EdgeMode.STREAM),)},
        "edge cache hands a KV cache on.*has mode stream; make it full or remove kv",
    ),
    "cache of a stage without one": (
        HALVES,
        {"stages": (replace(PREFILL, kind=StageKind.GENERATION, sampling={}), DECODE)},
        "edge cache hands on the KV cache of prefill, a generation stage.*remove kv",
    ),
    "two caches of one stage": (
        HALVES,
        {
            "stages": (PREFILL, DECODE, SECOND),
            "edges": (CACHE, replace(CACHE, name="again", consumer="second")),
        },
        r"stage prefill hands its KV cache on by 2 edges \(cache, again\); keep kv on one",
    ),
    "parts that are shared": (
        PAINTING,
        {"edges": (replace(SCENE, kv=None, split=True),)},
        "edge scene is shared.*is split into parts; remove split or shared",
    ),
    "a stream that is shared": (
        PAINTING,
        {"edges": (replace(SCENE, kv=None, mode=EdgeMode.STREAM),)},
        "edge scene is shared.*has mode stream; make it full or remove shared",
    ),
    "shared by ar requests": (
        HALVES,
        {"edges": (replace(CACHE, shared=True),)},
        "edge cache is shared by several requests of stage decode.*remove shared",
    ),
    "shared without an output": (
        PAINTING,
        {"stages": (THINKER, replace(PAINTER, output=None))},
        "edge scene is shared by several requests of stage painter.*with an output",
    ),
    "shared by a stage in the middle": (
        PAINTING,
        {
            "stages": (THINKER, PAINTER, SECOND),
            "edges": (SCENE, replace(CACHE, producer="painter", consumer="second", kv=None)),
        },
        "edge scene is shared by several requests of stage painter.*without edges that leave it",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistake_is_named(case: str) -> None:
    """Every mistake is one sentence that says what to change."""
    topology, changes, message = WRONG[case]
    with pytest.raises(TopologyError, match=message) as caught:
        replace(topology, **changes)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_stage_may_have_other_edges_beside_its_cache() -> None:
    plain = replace(CACHE, name="plain", consumer="second", kv=None)
    found = replace(HALVES, stages=(PREFILL, DECODE, SECOND), edges=(CACHE, plain))
    assert [edge.name for edge in found.edges_from("prefill")] == ["cache", "plain"]


def test_a_shared_edge_need_not_bring_a_cache() -> None:
    assert replace(PAINTING, edges=(replace(SCENE, kv=None),)).edges[0].shared


def test_edges_among_stages_have_both_ends_there() -> None:
    assert TOPOLOGY.edges_among(TOPOLOGY.stages) == TOPOLOGY.edges
    talker_on = TOPOLOGY.path_from("speech", None)
    assert [edge.name for edge in TOPOLOGY.edges_among(talker_on)] == ["codes"]
    assert TOPOLOGY.edges_among(talker_on[:1]) == ()


def test_no_modalities_are_all_that_the_entry_gives() -> None:
    for entry in ("chat", "speech"):
        everything = TOPOLOGY.path_from(entry, TOPOLOGY.outputs_from(entry))
        assert TOPOLOGY.path_from(entry, None) == everything


# --- deployed -------------------------------------------------------------------------------------


def halves(**cache: object) -> Deployment:
    settings = EdgeDeployment(**cache)  # type: ignore[arg-type]
    return Deployment(pipeline="halves", edges={"cache": settings})


def test_settings_in_force() -> None:
    given = halves(on_failure="recompute", ack_timeout_s=3)
    assert kv_settings(given, "cache") == KvSettings(on_failure="recompute", ack_timeout_s=3)
    assert kv_settings(given, "other") == KvSettings()


@pytest.mark.parametrize("mode", ["full", None])
def test_a_cache_may_be_said_to_cross_whole(mode: str | None) -> None:
    assert deployed(HALVES, halves(mode=mode)) == HALVES


@pytest.mark.parametrize(
    ("topology", "edge", "why"),
    [
        (HALVES, "cache", "hands a KV cache on"),
        (replace(PAINTING, edges=(replace(SCENE, kv=None),)), "scene", "is shared"),
    ],
)
def test_a_single_payload_cannot_be_deployed_as_a_stream(
    topology: Topology, edge: str, why: str
) -> None:
    """The operator's mistake, not the author's."""
    given = Deployment(pipeline=topology.name, edges={edge: EdgeDeployment(mode="stream")})
    with pytest.raises(DeploymentError, match=rf"^edges\.{edge}\.mode: edge {edge} {why}.*remove"):
        deployed(topology, given)


@pytest.mark.parametrize("field", KV_FIELDS)
def test_settings_of_caches_are_refused_elsewhere(field: str) -> None:
    """C54: what would have no effect is refused. Also when it says what is the default."""
    values = msgspec.structs.asdict(KvSettings())
    codes = EdgeDeployment(**{field: values[field]})
    given = Deployment(pipeline="sample", edges={"codes": codes})
    with pytest.raises(DeploymentError, match=rf"^edges\.codes\.{field}: .*no KV cache on"):
        fill_defaults(TOPOLOGY, given, device="cpu")


def test_recomputing_needs_a_stage_that_can() -> None:
    assert deployed(HALVES, halves(on_failure="recompute")) == HALVES
    given = Deployment(pipeline="painting", edges={"scene": EdgeDeployment(on_failure="recompute")})
    with pytest.raises(
        DeploymentError, match=r"^edges\.scene\.on_failure: stage painter is a generation stage"
    ):
        deployed(PAINTING, given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("on_failure: retry", "edges.cache.on_failure: invalid enum value 'retry'"),
        ("ack_timeout_s: -1", "edges.cache.ack_timeout_s is -1.0"),
        ("lease_s: .inf", "edges.cache.lease_s is inf"),
        ("checksum: 1", "edges.cache.checksum: expected bool"),
        ("leases: 1", "edges.cache.leases: unknown key; did you mean lease_s?"),
    ],
)
def test_wrong_setting_is_named_with_its_path(text: str, message: str) -> None:
    with pytest.raises(DeploymentError) as caught:
        parse_deployment(msgspec.yaml.decode(f"edges: {{cache: {{{text}}}}}"))
    assert str(caught.value).startswith(message)


def test_defaults_are_filled_in_where_there_is_a_cache_and_nowhere_else() -> None:
    plain = replace(CACHE, name="plain", consumer="second", kv=None)
    topology = replace(HALVES, stages=(PREFILL, DECODE, SECOND), edges=(CACHE, plain))
    filled = fill_defaults(topology, halves(lease_s=5), device="cpu")
    found = {
        name: [msgspec.structs.asdict(edge)[field] for field in KV_FIELDS]
        for name, edge in filled.edges.items()
    }
    assert found == {"cache": ["fail", 60.0, 5.0, False], "plain": [None] * 4}
    assert fill_defaults(topology, filled, device="cpu") == filled


@pytest.mark.parametrize("topology", [HALVES, PAINTING], ids=lambda t: t.name)
def test_printed_deployment_is_a_deployment_file(topology: Topology) -> None:
    filled = fill_defaults(topology, Deployment(pipeline=topology.name), device="cpu")
    assert parse_deployment(msgspec.yaml.decode(config_yaml(filled))) == filled


def test_documented_defaults_are_those_in_force() -> None:
    rows = docs.render().splitlines()
    for name, value in msgspec.structs.asdict(KvSettings()).items():
        (row,) = [row for row in rows if row.startswith(f"| `{name}` |")]
        documented = re.search(r"None is (\w+)\.", row)
        assert documented, row
        assert msgspec.yaml.decode(documented[1]) == value


# --- drawn ----------------------------------------------------------------------------------------


def test_a_cache_and_its_companions_are_drawn() -> None:
    assert "└─ cache (full, kv prefill_finished)" in draw(HALVES).splitlines()
    assert "└─ scene (full, kv special_token 7, shared by companions)" in (
        draw(PAINTING).splitlines()
    )


# --- what stages are told -------------------------------------------------------------------------


def specs(topology: Topology, *, in_process: bool = False, **given: object) -> dict[str, StageSpec]:
    edges = {topology.edges[0].name: EdgeDeployment(**given)}  # type: ignore[arg-type]
    chosen = Deployment(pipeline=topology.name, edges=edges, in_process=in_process)
    return resolve_stages(topology, fill_defaults(topology, chosen, device="cpu"), run="r1")


def test_both_ends_know_of_the_cache() -> None:
    found = specs(HALVES, on_failure="recompute", checksum=True)
    (out,), (into,) = found["prefill"].outputs, found["decode"].inputs
    assert out.kv == KvTransfer("prefill_finished")
    assert out.kv_settings == KvSettings(on_failure="recompute", checksum=True)
    assert into.kv
    assert (out.stream, into.stream) == (False, False)


def test_an_ar_stage_is_given_blocks_and_a_generation_stage_positions() -> None:
    assert specs(HALVES)["prefill"].outputs[0].kv_blocks
    assert not specs(PAINTING)["thinker"].outputs[0].kv_blocks


def test_other_edges_bring_no_cache() -> None:
    found = specs(replace(HALVES, edges=(replace(CACHE, kv=None),)))
    (out,), (into,) = found["prefill"].outputs, found["decode"].inputs
    assert (out.kv, out.kv_blocks, into.kv) == (None, False, False)


def loading(found: dict[str, StageSpec]) -> list[str]:
    return [name for name, spec in found.items() if spec.kv_connector]


def test_an_ar_stage_that_takes_a_cache_in_has_the_connector() -> None:
    assert loading(specs(HALVES)) == ["decode"]
    assert loading(specs(PAINTING)) == []  # the painter is given it with its forward
    assert loading(specs(replace(HALVES, edges=(replace(CACHE, kv=None),)))) == []


def test_engines_of_one_process_have_the_connector_all_or_none() -> None:
    """vLLM keeps one connector per process, and asks it in the steps of every engine there."""
    sound = replace(PAINTER, output="sound")
    more = replace(SCENE, producer="decode", kv=None)
    three = replace(HALVES, stages=(PREFILL, DECODE, sound), edges=(CACHE, more))
    assert loading(specs(three)) == ["decode"]
    assert loading(specs(three, in_process=True)) == ["prefill", "decode", "painter"]
    assert loading(specs(PAINTING, in_process=True)) == []


def test_two_stages_of_one_process_may_take_caches_in() -> None:
    last = replace(CACHE, name="more", producer="decode", consumer="second")
    three = replace(HALVES, stages=(PREFILL, DECODE, SECOND), edges=(CACHE, last))
    assert loading(specs(three)) == ["decode", "second"]
    assert loading(specs(three, in_process=True)) == ["prefill", "decode", "second"]


def test_a_stage_whose_producer_is_not_started_takes_no_cache_in() -> None:
    entries = (*HALVES.entries, replace(HALVES.entries[0], name="words", stage="decode"))
    topology = replace(HALVES, entries=entries)
    filled = fill_defaults(topology, Deployment(pipeline="halves"), device="cpu")
    found = resolve_stages(topology, filled, run="r1", entries=["words"])
    assert (list(found), loading(found), found["decode"].inputs) == (["decode"], [], ())
