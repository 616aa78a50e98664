"""What commands that run a pipeline decide before anything starts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from antiphon.errors import EmptyInputError, InvalidRequestError
from antiphon.pipeline.defaults import chosen_pipeline, fill_defaults
from antiphon.pipeline.deployment import ALL_STAGES, Deployment
from antiphon.pipeline.deployment_file import load_deployment
from antiphon.pipeline.printing import config_yaml
from antiphon.pipeline.topology import Topology


@dataclass(frozen=True, slots=True)
class Setup:
    """A pipeline and how it is to run, both checked."""

    topology: Topology
    deployment: Deployment  # every default filled in

    def config(self) -> str:
        """A deployment file with nothing left to decide; it ends with a line break."""
        return config_yaml(self.deployment)


def prepare(options: argparse.Namespace, replicas: Iterable[tuple[str, int]] = ()) -> Setup:
    """Load and check pipeline, deployment and environment. `replicas` go before the deployment's.

    Raises UnknownPipelineError, TopologyError, DeploymentError, SettingError or, for options that
    contradict each other, InvalidRequestError.
    """
    given = Deployment() if options.deployment is None else load_deployment(options.deployment)
    changes: dict[str, object] = {}
    if options.in_process:
        changes["in_process"] = True
    if options.verbose and given.log_level != "debug":
        changes["log_level"] = "info"
    changes["replicas"] = {**given.replicas, **dict(replicas)}
    given = msgspec.structs.replace(given, **changes).with_models(_models(options.model or ()))
    topology = chosen_pipeline(options.pipeline, given)
    return Setup(topology, fill_defaults(topology, given))


def _models(given: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The checkpoints by stage; two for one stage are a mistake."""
    models: dict[str, str] = {}
    for stage, model in given:
        if (first := models.setdefault(stage, model)) != model:
            whose = "all stages" if stage == ALL_STAGES else f"stage {stage}"
            raise InvalidRequestError(
                f"--model names two checkpoints for {whose}, {first} and {model}; leave one out"
            )
    return models


def check_installation() -> None:
    """Raise UpstreamError if vLLM is absent or of another version. Imports it not."""
    from antiphon.upstream.version import require_vllm

    require_vllm()


def check_bench(results: Path | None) -> None:
    """Raise OutputPathError or UpstreamError before a benchmark takes its time."""
    from antiphon.orchestrator.files import check_output_path

    if results is not None:
        check_output_path(results)
    check_installation()


def check_text(text: str) -> None:
    """Raise EmptyInputError if there is nothing to answer or to speak."""
    if not text.strip():
        raise EmptyInputError("the text is empty; give something to answer or to speak")


def check_raw_output(topology: Topology) -> None:
    """Raise InvalidRequestError if stdout is a terminal, where raw sound is noise."""
    if sys.stdout.isatty():
        raise InvalidRequestError(
            "--raw writes sound to standard output, which is a terminal; pipe it into a player, as"
            f" in: antiphon … --raw | aplay -r {topology.sample_rate} -f S16_LE"
        )
