"""What one engine step brought, as a message: upstream's outputs and what happened beside them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.metrics.stats import PrefillStats

from antiphon.errors import AntiphonError, CallerError, ErrorInfo, error_codes
from antiphon.sched.coordinator import Coordinator
from antiphon.stage.messages import Output, Step, Tensor

Frames = list[memoryview]
_NO_PREFILL = PrefillStats()


def report(
    stage: str, coordinator: Coordinator, outs: Iterable[EngineCoreOutput]
) -> tuple[Step, Frames]:
    """The step's message and the raw tensors beside it; `coordinator`'s events are taken."""
    events = coordinator.take_events()
    # What ended in this update may be in its next segment already.
    ended = {end.uid: end.epoch for end in events.segments}
    frames: Frames = []
    outputs = []
    for out in outs:
        uid, ids = out.request_id, list(out.new_token_ids)
        tensor = None if out.pooling_output is None else _pack(out.pooling_output, frames)
        finish = None if out.finish_reason is None else str(out.finish_reason)
        error = events.errors.pop(uid, None)
        if error is not None:
            error = named(stage, error)
        epoch = ended[uid] if uid in ended else coordinator.epoch(uid)
        prompt = out.prefill_stats or _NO_PREFILL
        outputs.append(
            Output(
                uid,
                ids,
                tensor,
                finish,
                out.stop_reason,
                error,
                epoch,
                prompt_tokens=prompt.num_prompt_tokens,
                cached_tokens=prompt.num_cached_tokens,
            )
        )
    for uid, info in events.errors.items():  # the request itself had ended before
        outputs.append(Output(uid, finish="error", error=named(stage, info)))
    for end in events.segments:
        outputs.append(Output(end.uid, epoch=end.epoch, segment_finish=end.reason))
    return Step(outputs, events.refs, events.used), frames


def named(stage: str, info: ErrorInfo) -> ErrorInfo:
    """The error with the stage that it comes from; what is the caller's fault is no stage's."""
    known = error_codes().get(info.code, AntiphonError)
    if issubclass(known, CallerError) or f"'{stage}'" in info.message:
        return info
    return ErrorInfo(info.code, f"stage '{stage}': {info.message}")


def _pack(tensor: torch.Tensor, frames: Frames) -> Tensor:
    """Append the tensor's bytes as a frame; dtypes that numpy lacks leave as float32."""
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    array = tensor.detach().cpu().contiguous().numpy()
    frames.append(array.reshape(-1).view(np.uint8).data)
    return Tensor(str(array.dtype), tuple(array.shape), len(frames) - 1)
