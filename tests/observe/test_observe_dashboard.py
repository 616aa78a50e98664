"""What deploy/ asks of Prometheus exists: our metrics in the table, vLLM's in its logger."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.observe.table import PLACE, TABLE, Kind
from source import ROOT

DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "antiphon.json").read_text())
ALERTS = msgspec.yaml.decode((DEPLOY / "prometheus" / "alerts.yml").read_text())

_PARTS = ("_bucket", "_sum", "_count")  # series of a histogram
_WORDS = {"sum", "by", "rate", "histogram_quantile", "label_values", "le"}


def expressions() -> Iterator[tuple[str, str]]:
    """(where, expression): of every panel, of what fills a choice, and of every alert."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield f"choice {variable['name']}", variable["query"]["query"]
    for group in ALERTS["groups"]:
        for alert in group["rules"]:
            yield alert["alert"], alert["expr"]


def vllms() -> dict[str, tuple[str, set[str]]]:
    """Name in an exposition, kind and labels of what vLLM's logger makes, out of its source."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "v1" / "metrics" / "loggers.py").read_text()
    found = {}
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        kind = node.func.attr.removeprefix("_").removesuffix("_cls")
        named = {k.arg: k.value for k in node.keywords}
        name = named.get("name")
        if kind in ("gauge", "counter", "histogram") and isinstance(name, ast.Constant):
            assert isinstance(name.value, str)
            labels = {"model_name", "engine"} | {
                str(constant.value)
                for constant in ast.walk(named["labelnames"])
                if isinstance(constant, ast.Constant)
            }
            found[name.value + ("_total" if kind == "counter" else "")] = (kind, labels)
    return found


def known() -> dict[str, set[str]]:
    """Every series that there can be, with its labels."""
    series: dict[str, set[str]] = {}
    families = {m.full_name: (str(m.kind), set(m.all_labels)) for m in TABLE}
    families |= {name: (kind, labels | {*PLACE}) for name, (kind, labels) in vllms().items()}
    for name, (kind, labels) in families.items():
        if kind == Kind.HISTOGRAM:
            series |= {name + part: labels | {"le"} for part in _PARTS}
        else:
            series[name] = labels
    return series


KNOWN = known()


def mistakes(expression: str) -> list[str]:
    """What an expression names that does not exist."""
    found = []
    names = re.findall(r"\b(?:antiphon|vllm):\w+", expression)
    found += [f"metric {name}" for name in names if name not in KNOWN]
    if not names:
        found.append("no metric")
    labels = set().union(*(KNOWN.get(name, set()) for name in names))
    for name, selector in re.findall(r"((?:antiphon|vllm):\w+)\{([^}]*)\}", expression):
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        found += [f"label {label} of {name}" for label in used - KNOWN.get(name, used)]
    for group in re.findall(r"by \(([^)]*)\)", expression):
        grouped = {label.strip() for label in group.split(",")}
        found += [f"label {label}" for label in grouped - labels]
    if choice := re.fullmatch(r"label_values\((.*), (\w+)\)", expression):
        found += [] if choice[2] in labels else [f"label {choice[2]}"]
    bare = re.sub(r"\"[^\"]*\"|\{[^}]*\}|\[[^\]]*\]|(?:antiphon|vllm):\w+", " ", expression)
    words = set(re.findall(r"\b[a-z_]{2,}\b", bare))
    return found + [f"word {word}" for word in words - _WORDS - labels]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_expression_names_what_exists(where: str, expression: str) -> None:
    assert mistakes(expression) == [], where


@pytest.mark.parametrize(
    ("expression", "mistake"),
    [
        ("antiphon:request_total", "metric antiphon:request_total"),
        ("vllm:no_such_metric", "metric vllm:no_such_metric"),
        ("rate(antiphon:time_to_first_token_seconds[5m])", None),  # a histogram has no such series
        ('antiphon:requests_running{stage="x"}', "label stage of antiphon:requests_running"),
        ("sum by (edge) (antiphon:stage_up)", "label edge"),
        ("sum(requests_total)", "no metric"),
        ("label_values(antiphon:requests_running, stage)", "label stage"),
    ],
)
def test_the_check_sees_mistakes(expression: str, mistake: str | None) -> None:
    found = mistakes(expression)
    assert found
    assert mistake is None or mistake in found


def test_the_dashboard_shows_most_of_the_table() -> None:
    """Each metric is for somebody to look at; these are for the one who searches."""
    text = " ".join(expression for _, expression in expressions())
    unseen = {m.name for m in TABLE if not re.search(rf"{m.full_name}\b|{m.full_name}_", text)}
    assert unseen <= {
        "time_to_first_image_seconds",
        "request_time_per_output_token_seconds",
        "stage_tokens_total",
        "edge_chunks_total",
        "edge_depth_bytes",
        "edge_capacity_bytes",
        "edge_blocked_requests",
        "edge_blockings_total",
        "stage_starved_total",
        "stage_late_chunks_total",
        "kv_store_seconds_total",
        "kv_held_blocks",
    }


def test_every_panel_can_be_told_from_the_others() -> None:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [tuple(panel["gridPos"].values()) for panel in panels]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("file", sorted(DEPLOY.rglob("*.yml")), ids=lambda file: file.name)
def test_yaml_can_be_read(file: Path) -> None:
    assert isinstance(msgspec.yaml.decode(file.read_text()), dict)


def test_every_file_that_is_mounted_exists() -> None:
    compose = msgspec.yaml.decode((DEPLOY / "docker-compose.yml").read_text())
    mounts = [m.split(":")[0] for s in compose["services"].values() for m in s["volumes"]]
    assert mounts
    for mount in mounts:
        assert (DEPLOY / mount).exists(), mount
    prometheus = msgspec.yaml.decode((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    for name in prometheus["rule_files"]:
        assert (DEPLOY / "prometheus" / name).exists()
