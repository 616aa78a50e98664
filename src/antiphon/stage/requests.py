"""What upstream's own front end does with a request before its engine sees it, for this stage's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import GenerationConfig
from vllm import PoolingParams, SamplingParams
from vllm.config import ModelConfig, VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.tasks import PoolingTask
from vllm.v1.engine import EngineCoreRequest

from antiphon.errors import InvalidRequestError
from antiphon.stage.messages import Submit
from antiphon.stage.spec import StageSpec
from antiphon.upstream.audio import HeardPrompt
from antiphon.worker.frame_sampling import KEYS as FRAME_KEYS


class Requests:
    """Makes and checks them. `task` is that of a generation stage, None where tokens are sampled;
    the adapters of `row_edges` want tensors of every position.
    """

    def __init__(
        self,
        config: VllmConfig,
        spec: StageSpec,
        task: PoolingTask | None,
        row_edges: frozenset[str],
    ) -> None:
        self._config = config
        self._generates = task is None
        self._task = task
        self._row_edges = row_edges
        model = config.model_config
        self._generation_config = _generation_config(model, spec) if self._generates else {}
        self._eos = self._generation_config.get("eos_token_id")
        self._arrival = 0.0

    def make(
        self, submit: Submit, prompt: HeardPrompt, *, in_chunks: bool = False
    ) -> EngineCoreRequest:
        """The request as upstream wants it; `in_chunks`: its input is a stream.

        Raises what `refusals` turns into errors of the caller.
        """
        sampling, pooling = self._params(submit)
        # Strictly increasing: a gated request finds its place in the queue by it.
        self._arrival = max(time.time(), self._arrival + 1e-6)
        return EngineCoreRequest(
            request_id=submit.uid,
            prompt_token_ids=prompt.token_ids or [0],
            mm_features=prompt.features or None,
            sampling_params=sampling,
            pooling_params=pooling,
            arrival_time=self._arrival,
            lora_request=None,
            # A placeholder must never be found in the prefix cache; its plan brings its own salt.
            cache_salt=submit.uid if submit.waits_for is not None else None,
            data_parallel_rank=None,
            external_req_id=submit.uid,
            priority=submit.priority,
            resumable=submit.session or (in_chunks and not self._generates),
        )

    def _params(self, submit: Submit) -> tuple[SamplingParams | None, PoolingParams | None]:
        # A prompt found in the prefix cache is not computed, so its rows would not exist.
        skip = not self._row_edges.isdisjoint(submit.edges) or None
        if not self._generates:
            extra = dict(submit.params)
            return None, PoolingParams(
                task=self._task, extra_kwargs=extra, skip_reading_prefix_cache=skip
            )
        self.check_ids(submit.token_ids)
        sampling = self.sampling(_with_args(submit))
        if skip:
            sampling.skip_reading_prefix_cache = True
        return sampling, None

    def sampling(self, given: Mapping[str, Any]) -> SamplingParams:
        """Sampling parameters as upstream's own front end would make and check them. ValueError."""
        sampling = SamplingParams(**given)
        if sampling.max_tokens is None:
            raise ValueError("max_tokens is not given")
        sampling.verify(
            self._config.model_config,
            self._config.speculative_config,
            self._config.structured_outputs_config,
            None,
        )
        primary = self._eos if isinstance(self._eos, int) else None
        sampling.update_from_generation_config(self._generation_config, primary)
        return sampling

    def check_ids(self, token_ids: list[int]) -> None:
        """What upstream's own front end checks and its engine takes for granted. ValueError."""
        vocabulary = self._config.model_config.get_vocab_size()
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocabulary):
            raise ValueError(f"token ids must lie between 0 and {vocabulary - 1}")


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """What upstream refuses, as an error of the caller."""
    try:
        yield
    except (TypeError, ValueError, VLLMValidationError) as error:
        message = " ".join(str(error).split())
        raise InvalidRequestError(f"the engine refuses the request: {message}") from error


def _with_args(submit: Submit) -> Mapping[str, Any]:
    """Sampling parameters; what upstream does not know of them and the request's own parameters are
    visible to logits processors and decode hooks.
    """
    ours = {key: value for key, value in submit.sampling.items() if key in FRAME_KEYS}
    sampling = {key: value for key, value in submit.sampling.items() if key not in ours}
    if submit.params or ours:
        extra = dict(sampling.get("extra_args") or {})
        sampling["extra_args"] = {**submit.params, **extra, **ours}
    return sampling


def _generation_config(model: ModelConfig, spec: StageSpec) -> dict[str, Any]:
    """What is not transformers' default of how the model generates; its end token, above all.

    A checkpoint's own file speaks of the whole. A stage that runs a part of it takes what the
    part's configuration says.
    """
    if spec.hf_config is None:
        return model.try_get_generation_config()
    found: dict[str, Any] = GenerationConfig.from_model_config(model.hf_config).to_diff_dict()
    return found
