"""torchvision beside torch's CPU build. Everything here is seen in fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest


def run(program: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


def test_torch_calls_it() -> None:
    found = [point.value for point in entry_points(group="torch.backends")]
    assert "antiphon.upstream.torchvision_ops:ensure_torchvision_ops" in found


def test_torchvision_can_be_imported() -> None:
    done = run("import torchvision.transforms.v2")
    assert done.returncode == 0, done.stderr


def test_without_it_torchvision_cannot_be_imported() -> None:
    """Once this fails, the module and its entry point may go."""
    done = run("import torchvision", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "operator torchvision::nms does not exist" in done.stderr


def test_importing_torch_does_not_import_torchvision() -> None:
    done = run(
        "import sys, torch\n"
        "from antiphon.upstream.torchvision_ops import ensure_torchvision_ops\n"
        "ensure_torchvision_ops()\n"  # a second time
        "sys.exit('torchvision' in sys.modules)"
    )
    assert done.returncode == 0, done.stderr


def test_declared_operator_computes_nothing() -> None:
    done = run(
        "import torch\n"
        "try:\n"
        "    torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)\n"
        "except NotImplementedError:\n"
        "    print('refused')"
    )
    assert done.stdout == "refused\n", done.stderr


def test_without_torchvision_nothing_is_declared() -> None:
    done = run(
        "import sys\n"
        "sys.modules['torchvision'] = None\n"  # as if it were not installed
        "import torch\n"
        "sys.exit(hasattr(torch.ops.torchvision, 'nms'))"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_vllm_can_inspect_a_thinker(tmp_path: Path) -> None:
    """In a subprocess of its own, which imports transformers before it loads any plugin."""
    done = run(
        "from vllm.model_executor.models.registry import ModelRegistry\n"
        "model = ModelRegistry.models['Qwen3OmniMoeForConditionalGeneration']\n"
        "print(model.inspect_model_cls().supports_multimodal)",
        VLLM_CACHE_ROOT=str(tmp_path),
    )
    assert done.stdout == "True\n", done.stderr
