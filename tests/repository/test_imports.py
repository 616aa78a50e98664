"""What importing the package costs, in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    ["antiphon", "antiphon.orchestrator", "antiphon.orchestrator.local", "antiphon.cli.main"],
)
def test_importing_it_imports_neither_vllm_nor_torch(module: str) -> None:
    program = (
        f"import sys, {module}\n"
        "heavy = [name for name in ('vllm', 'torch', 'transformers') if name in sys.modules]\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
