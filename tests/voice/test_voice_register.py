"""Stage models are known in every process of vLLM, through its plugin entry point."""

from __future__ import annotations

import subprocess
import sys

import pytest

from antiphon.models.voice import weights

_CODE = """
import sys
from vllm.plugins import load_general_plugins
load_general_plugins()
from transformers import AutoConfig
from vllm import ModelRegistry
config = AutoConfig.from_pretrained(sys.argv[1], local_files_only=True)
print(type(config).__name__, config.architectures[0] in ModelRegistry.get_supported_archs())
"""


@pytest.mark.slow
def test_new_process_knows_the_model() -> None:
    """Nothing but the installed entry point registers it."""
    command = [sys.executable, "-c", _CODE, str(weights.code2wav_checkpoint())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-2:] == ["Code2WavConfig", "True"]
