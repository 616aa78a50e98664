"""Every error of the project, split by whose fault it is.

AntiphonError
├── CallerError              the request cannot be served as it was made
│   ├── EmptyInputError
│   ├── InputTooLongError
│   ├── InvalidRequestError
│   ├── DuplicateRequestError
│   └── OutputPathError
├── AuthorError              the pipeline's or model's author declared something wrong
│   ├── TopologyError
│   └── AdapterError
├── OperatorError            the deployment, the settings or the machine
│   ├── UnknownPipelineError
│   ├── DeploymentError
│   ├── SettingError
│   └── ModelUnavailableError
├── StageError               serving a request failed (`retryable` where it may help)
│   ├── StageStartError
│   ├── StageDiedError
│   ├── StageStepError
│   ├── PreemptedError
│   ├── StageInputTimeout
│   ├── DeadlineExceededError
│   ├── SampledLogprobContractError
│   ├── PayloadError
│   ├── ConnectorError
│   ├── KVTransferError
│   ├── OverloadedError
│   └── ShutdownError
└── UpstreamError            vLLM is absent, of another version, or has moved a seam
    ├── UpstreamMissingError
    ├── UpstreamVersionError
    └── SeamMovedError

Each class has a `code` that survives the wire: `error.to_wire()` gives an `ErrorInfo`,
`from_wire(info)` the same class again on the other side. The message is one sentence that says what
to do.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

import msgspec

E = TypeVar("E", bound=BaseException)


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error as it crosses a process boundary."""

    code: str
    message: str


class AntiphonError(Exception):
    """Base of all errors that Antiphon raises on purpose."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def to_wire(self) -> ErrorInfo:
        return ErrorInfo(self.code, str(self))


class CallerError(AntiphonError):
    """The request cannot be served as it was made; change the request."""

    code = "invalid_request"


class EmptyInputError(CallerError):
    """The text holds nothing to answer or to speak."""

    code = "empty_input"


class InputTooLongError(CallerError):
    """The input does not fit the stage's model length or its token budget."""

    code = "input_too_long"


class InvalidRequestError(CallerError):
    """A parameter of the request has a wrong type or value."""

    code = "invalid_parameter"


class DuplicateRequestError(CallerError):
    """A request with this id is still alive."""

    code = "duplicate_request"


class OutputPathError(CallerError):
    """The output file cannot be written."""

    code = "output_path"


class AuthorError(AntiphonError):
    """The pipeline or one of its adapters is declared wrongly; nothing the caller can do."""

    code = "pipeline_defect"


class TopologyError(AuthorError):
    """The graph of stages is not valid."""

    code = "topology"


class AdapterError(AuthorError):
    """An adapter raised, or returned something its contract forbids."""

    code = "adapter"


class OperatorError(AntiphonError):
    """The deployment, a setting or the machine stands in the way."""

    code = "deployment_defect"


class UnknownPipelineError(OperatorError):
    """No pipeline has this name."""

    code = "unknown_pipeline"


class DeploymentError(OperatorError):
    """A deployment file or option is not valid."""

    code = "deployment"


class SettingError(OperatorError):
    """An environment variable or setting has a value that makes no sense."""

    code = "setting"


class ModelUnavailableError(OperatorError):
    """Model files are not in the cache and cannot be fetched, or are not what they should be."""

    code = "model_unavailable"


class StageError(AntiphonError):
    """Serving the request failed in a stage."""

    code = "stage"


class StageStartError(StageError):
    """A stage did not start; the message carries its reason."""

    code = "stage_start"


class StageDiedError(StageError):
    """The process of a stage ended while the request was bound to it."""

    code = "stage_died"
    retryable = True


class StageStepError(StageError):
    """The engine raised while it executed a step that this request was part of."""

    code = "stage_step"
    retryable = True


class PreemptedError(StageError):
    """The request lost its cache blocks to others, and its stage cannot compute it again."""

    code = "preempted"
    retryable = True


class StageInputTimeout(StageError):
    """A request waited longer than allowed for its stage input."""

    code = "stage_input_timeout"
    retryable = True


class DeadlineExceededError(StageError):
    """The request's own deadline passed before its last output."""

    code = "deadline_exceeded"
    retryable = True


class SampledLogprobContractError(StageError):
    """The worker returned logprobs that do not describe the sampled tokens."""

    code = "sampled_logprob_contract"


class PayloadError(StageError):
    """A payload is corrupt, truncated, too large, or lacks what its edge declares."""

    code = "payload"


class ConnectorError(StageError):
    """A connector could not store or find a payload."""

    code = "connector"
    retryable = True


class KVTransferError(StageError):
    """A request's KV cache could not be handed to the next stage."""

    code = "kv_transfer"
    retryable = True


class OverloadedError(StageError):
    """As many requests wait at a stage as may; `retry_after_s` guesses when there is room."""

    code = "overloaded"
    retryable = True
    retry_after_s: float = 1.0


class ShutdownError(StageError):
    """The runtime was closed while the request was under way."""

    code = "shutdown"
    retryable = True


class UpstreamError(AntiphonError):
    """vLLM is not what this version of Antiphon was made for."""

    code = "upstream"


class UpstreamMissingError(UpstreamError):
    """vLLM is not installed."""

    code = "upstream_missing"


class UpstreamVersionError(UpstreamError):
    """vLLM is installed in a version that is not supported."""

    code = "upstream_version"


class SeamMovedError(UpstreamError):
    """A private name of vLLM that the project relies on is gone or has changed."""

    code = "seam_moved"


def _subclasses(cls: type[AntiphonError]) -> list[type[AntiphonError]]:
    found = [cls]
    for sub in cls.__subclasses__():
        found += _subclasses(sub)
    return found


def error_codes() -> dict[str, type[AntiphonError]]:
    """All codes with their classes."""
    return {cls.code: cls for cls in _subclasses(AntiphonError)}


def without_frames(error: E) -> E:
    """`error`, which is to be kept, without its traceback and the errors that led to it.

    Those hold the frames that it came through and all their callers, and by their variables what
    the request held, and the error itself: a cycle that nothing but the garbage collector ends.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def from_wire(info: ErrorInfo) -> AntiphonError:
    """The error that `to_wire` described; an unknown code gives the base class, message kept."""
    return error_codes().get(info.code, AntiphonError)(info.message)
