"""What the bodies of all calls have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from antiphon.pipeline.suggest import did_you_mean
from antiphon.serve.errors import ApiError, wrong

_SHOWN = 64  # characters of a caller's name that an error repeats
MAX_ENTRIES = 4096
"""Of one field. pydantic would go through them all, and keep a complaint about each: of a
body of zeros some gigabytes, with the event loop standing still.
"""

Name = Annotated[str, Field(max_length=_SHOWN)]
"""Of something that the server knows by name."""
Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]  # what a message to a stage can carry
Text = Annotated[str, Field(max_length=1 << 26)]
"""Unicode that can be encoded: pydantic looks at what has a bound. Bodies have a smaller one."""


def _in_words(value: Any, union: ValidatorFunctionWrapHandler) -> Any:
    """One complaint, in place of one for each member of the union."""
    try:
        return union(value)
    except ValidationError:
        raise PydanticCustomError(
            "parameter", "Input should be true, false, a finite number or a text"
        ) from None


Parameter = Annotated[bool | Whole | float | Text, WrapValidator(_in_words)]
"""What a pipeline's models can be told."""


class Body(BaseModel):
    """A JSON object: its values are taken as they are, and every key has to be known."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, given: Any) -> Any:
        """Raises ApiError; pydantic's own words for an unknown key do not say which are known."""
        if isinstance(given, Mapping):
            for name, value in given.items():
                if name not in cls.model_fields:
                    short = name[:_SHOWN]
                    raise ApiError(
                        400,
                        f"{short!r} is no parameter here{did_you_mean(short, cls.model_fields)}",
                        code="unknown_parameter",
                        param=short,
                    )
                check_entries(value, name)
        return given


class VoiceId(Body):
    """A voice of the caller's own, at OpenAI."""

    id: Name


class Voiced(Body):
    """Names who speaks."""

    voice: Name | VoiceId | None = None

    @property
    def voice_name(self) -> str | None:
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice


class Extended(Body):
    """Has our extensions of OpenAI's calls."""

    sampling: dict[Name, dict[Name, Any]] = Field(
        default={}, description="Sampling parameters by stage; they go before OpenAI's fields."
    )
    params: dict[Name, Parameter] = Field(
        default={},
        description="What the pipeline's models are told, such as the speaker or the language.",
    )


def check_entries(value: object, name: str) -> None:
    """Raise ApiError for a list or an object with more in it, objects in it included, than anybody
    needs.
    """
    if isinstance(value, Mapping):
        check_count(
            len(value) + sum(len(v) for v in value.values() if isinstance(v, Mapping)), name
        )
    elif isinstance(value, list):
        check_count(len(value), name)


def check_count(count: int, name: str) -> None:
    """Raise ApiError for more than `MAX_ENTRIES`."""
    if count > MAX_ENTRIES:
        raise wrong(name, f"has {count} entries; give at most {MAX_ENTRIES}")
