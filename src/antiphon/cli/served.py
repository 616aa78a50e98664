"""What a server serves, by its own word."""

from __future__ import annotations

import msgspec

from antiphon.cli import ask
from antiphon.errors import InvalidRequestError, OperatorError
from antiphon.pipeline.suggest import did_you_mean


class _Stage(msgspec.Struct, frozen=True):
    name: str
    output: str | None = None


class _Pipeline(msgspec.Struct, frozen=True):
    stages: tuple[_Stage, ...] = ()


class Served(msgspec.Struct, frozen=True):
    """A model of `/v1/models`; only a server of ours says what it is made of."""

    id: str
    antiphon: _Pipeline | None = None

    @property
    def text_stage(self) -> str | None:
        """The stage that answers in text; None on another's server."""
        stages = () if self.antiphon is None else self.antiphon.stages
        return next((stage.name for stage in stages if stage.output == "text"), None)


class _Models(msgspec.Struct, frozen=True):
    data: tuple[Served, ...]


def served_model(url: str, name: str | None, api_key: str | None) -> Served:
    """The model of this name at the server `url`, else its first.

    Raises what `ask.get` and `ask.decoded` raise, OperatorError for a server without a model,
    InvalidRequestError for a name that it has not.
    """
    models = ask.decoded(ask.get(url, "/v1/models", api_key), _Models, url).data
    if not models:
        raise OperatorError(f"the server at {url} has no model; name one with --model")
    if name is None:
        return models[0]
    for model in models:
        if model.id == name:
            return model
    hint = did_you_mean(name, [model.id for model in models])
    raise InvalidRequestError(f"the server at {url} has no model {name!r}{hint}")
