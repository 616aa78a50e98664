"""Layering that an import linter cannot see: what really gets loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

CORE = """
import importlib, pkgutil, sys
import antiphon.core
names = [m.name for m in pkgutil.iter_modules(antiphon.core.__path__, "antiphon.core.")]
assert len(names) >= 5, names
for name in names:
    importlib.import_module(name)
"""
LIGHT = """
import sys
import antiphon.connector.registry, antiphon.env, antiphon.errors, antiphon.payload.ref
import antiphon.testing.clock
"""


@pytest.mark.parametrize("code", [CORE, LIGHT], ids=["core", "connectors and references"])
def test_neither_vllm_nor_torch_is_imported(code: str) -> None:
    """C71: importable where neither is installed."""
    check = "\nfor name in ('torch', 'vllm'): sys.modules[name] = None  # importing it would raise"
    program = "import sys" + check + code
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
