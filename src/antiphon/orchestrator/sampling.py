"""The sampling parameters that a request may set per stage, with their types and bounds.

Names and meanings are vLLM's, but for those that begin with `code_`. A parameter that is not here
is refused, never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from antiphon.errors import InvalidRequestError
from antiphon.pipeline.suggest import did_you_mean
from antiphon.pipeline.topology import StageKind, Topology

WHOLE_MAX = (1 << 63) - 1  # what a message can carry


@dataclass(frozen=True, slots=True)
class Bounds:
    """A number's type and range; `above` excludes the lower end itself."""

    whole: bool
    low: float = -math.inf
    high: float = math.inf
    above: bool = False

    def problem(self, value: object) -> str | None:
        kinds = (int,) if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return f"is {value!r}; give a {'whole ' if self.whole else ''}number"
        if self.whole and abs(value) > WHOLE_MAX:
            return f"is {value}; give a number of at most 63 bits"
        if not math.isfinite(value):
            return f"is {value}; give a finite number"
        if value < self.low or value > self.high or (self.above and value == self.low):
            return f"is {value}; {self._range()}"
        return None

    def _range(self) -> str:
        low = f"{'more than' if self.above else 'at least'} {self.low:g}"
        return f"give {low}" if self.high == math.inf else f"give {low} and at most {self.high:g}"


NUMBERS = {
    "max_tokens": Bounds(whole=True, low=1),
    "min_tokens": Bounds(whole=True, low=0),
    "temperature": Bounds(whole=False, low=0),
    "top_p": Bounds(whole=False, low=0, high=1, above=True),
    "top_k": Bounds(whole=True, low=0),
    "min_p": Bounds(whole=False, low=0, high=1),
    "seed": Bounds(whole=True),
    "repetition_penalty": Bounds(whole=False, low=0, above=True),
    "presence_penalty": Bounds(whole=False, low=-2, high=2),
    "frequency_penalty": Bounds(whole=False, low=-2, high=2),
    # Of a frame's further codes, where a stage makes frames.
    "code_temperature": Bounds(whole=False, low=0, high=1e6),
    "code_top_k": Bounds(whole=True, low=0, high=1 << 30),
    "code_top_p": Bounds(whole=False, low=1e-6, high=1),
}
# What vLLM knows and this version could not give back: refused, never dropped.
REFUSED = {"logprobs": "is not given back by this version; leave it out"}
FLAGS = frozenset({"ignore_eos"})
ID_LISTS = frozenset({"stop_token_ids", "allowed_token_ids"})
KNOWN = frozenset({*NUMBERS, *FLAGS, *ID_LISTS})


def check_sampling(
    topology: Topology, sampling: Mapping[str, Mapping[str, object]], path: tuple[str, ...]
) -> None:
    """Raise InvalidRequestError, naming stage and parameter, for what could not take effect.

    `sampling` is as it came from the caller; `path` names the stages that the request visits.
    """
    if not _is_by_stage(sampling):
        stage = next((name for name in path if topology.stage(name).kind is StageKind.AR), path[0])
        raise InvalidRequestError(
            f'sampling is by stage, as in {{"{stage}": {{"temperature": 0.5}}}}; it is {sampling!r}'
        )
    for name, values in sampling.items():
        if name not in topology.stage_names:
            raise InvalidRequestError(
                f"sampling names {name!r}, which is no stage of pipeline {topology.name}"
                f"{did_you_mean(name, topology.stage_names)}"
            )
        if topology.stage(name).kind is not StageKind.AR:
            raise InvalidRequestError(
                f"stage {name} is a generation stage and samples nothing; remove it from sampling"
            )
        if name not in path:
            raise InvalidRequestError(
                f"sampling names stage {name}, which this request does not visit; remove it"
            )
        for key, value in values.items():
            problem = _problem(key, value)
            if problem is not None:
                raise InvalidRequestError(f"{key} of stage {name} {problem}")


def _is_by_stage(sampling: object) -> bool:
    """Whether it is dicts of names within a dict of names."""
    if not isinstance(sampling, Mapping):
        return False
    return all(
        isinstance(values, Mapping) and all(isinstance(key, str) for key in (stage, *values))
        for stage, values in sampling.items()
    )


def _problem(key: str, value: object) -> str | None:
    if key in REFUSED:
        return REFUSED[key]
    if key in NUMBERS:
        return NUMBERS[key].problem(value)
    if key in FLAGS:
        return None if isinstance(value, bool) else f"is {value!r}; give true or false"
    if key in ID_LISTS:
        ids = value if isinstance(value, list | tuple) else (None,)
        right = all(type(i) is int and 0 <= i <= WHOLE_MAX for i in ids)
        return None if right else f"is {value!r}; give a list of token ids"
    return f"is no sampling parameter{did_you_mean(key, KNOWN)}"
