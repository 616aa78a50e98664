"""What has to lie in a checkpoint's folder beside its weights, told before anything starts. Neither
torch nor vllm is imported here.
"""

from __future__ import annotations

from pathlib import Path

from antiphon.errors import ModelUnavailableError
from antiphon.models.qwen2_5_omni.params import SPEAKERS_FILE
from antiphon.pipeline.facts import CheckpointFacts


def talker_facts(folder: Path) -> CheckpointFacts:
    """`Stage.facts` of the talker. Raises ModelUnavailableError for a folder without speakers."""
    file = folder / SPEAKERS_FILE
    if not file.is_file():
        raise ModelUnavailableError(
            f"there is no {file}; add it from where the checkpoint came from, it has the speakers"
        )
    return CheckpointFacts()
