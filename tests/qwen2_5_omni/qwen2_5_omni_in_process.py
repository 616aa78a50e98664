"""Run by test_qwen2_5_omni_whole.py in a process of its own; prints one JSON object.

Engines of one process share vLLM's process-wide state and must be closed together, so this stays
apart from the other tests' engines.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from antiphon import Deployment, Omni, OmniRequest
from antiphon.errors import AntiphonError
from antiphon.models.qwen2_5_omni.tiny import write_tiny
from antiphon.pipeline.stage_deployment import StageDeployment
from qwen2_5_omni_oracle import chat, generate

PIPELINE = "qwen2.5-omni"
TEXTS = ("hello there", "how are you, and what is it")
SYSTEM = {"role": "system", "content": "be kind"}
SAMPLING: dict[str, dict[str, object]] = {
    "thinker": {"max_tokens": 16},
    "talker": {"max_tokens": 40, "temperature": 0.0, "repetition_penalty": 1.0},
}


def deployment() -> Deployment:
    small = StageDeployment(
        device="cpu",
        dtype="float32",  # "auto" would be vLLM's choice, which is bfloat16
        max_model_len=256,
        max_num_batched_tokens=256,
        kv_cache_bytes="8MiB",
    )
    stages = dict.fromkeys(("thinker", "talker", "token2wav"), small)
    return Deployment(pipeline=PIPELINE, stages=stages)


def request(text: str, **over: Any) -> OmniRequest:
    return OmniRequest(text=text, messages=[SYSTEM], **{"sampling": SAMPLING, **over})


def same(reply: Any, folder: str, text: str, **over: Any) -> bool:
    oracle = generate(folder, chat(folder, text), 16, 40, **over)
    return bool((oracle.waveform.numpy() == reply.audio).all())


def refusal(omni: Omni, **params: Any) -> str:
    try:
        omni.generate(request(TEXTS[0], params=params))
    except AntiphonError as error:
        return f"{error.code}: {error}"
    return "none"


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = str(Path(place))
        write_tiny(Path(place))
        report: dict[str, Any] = {}
        with Omni(PIPELINE, model=folder, deployment=deployment(), in_process=True) as omni:
            replies = [omni.generate(request(text)) for text in TEXTS]
            report["sounds"] = [
                same(reply, folder, text) for reply, text in zip(replies, TEXTS, strict=True)
            ]
            report["rate"] = replies[0].sample_rate
            reply = omni.generate(request(TEXTS[0], params={"speaker": "ethan", "seed": 3}))
            report["speaker"] = same(reply, folder, TEXTS[0], speaker="Ethan", seed=3)
            report["nobody"] = refusal(omni, speaker="nobody")
            report["unknown"] = refusal(omni, accent="none")
            alone = {"thinker": SAMPLING["thinker"]}
            written = omni.generate(request(TEXTS[0], modalities=("text",), sampling=alone))
            report["text"] = [written.text == replies[0].text, written.audio is None]
            sampled = OmniRequest(text=TEXTS[0], sampling={"talker": {"max_tokens": 20}})
            report["sampled"] = len(omni.generate(sampled).audio)  # type: ignore[arg-type]
        print(json.dumps(report))


if __name__ == "__main__":
    main()
