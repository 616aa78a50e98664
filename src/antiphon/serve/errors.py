"""Errors in OpenAI's form: a status and `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import json
import math
import re

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from antiphon.errors import (
    AntiphonError,
    CallerError,
    DeadlineExceededError,
    DuplicateRequestError,
    OverloadedError,
    ShutdownError,
    StageDiedError,
    StageInputTimeout,
    StageStartError,
)

# The first class that fits; CallerError is 400, everything else 500.
_STATUS: tuple[tuple[type[AntiphonError], int], ...] = (
    (DuplicateRequestError, 409),
    (CallerError, 400),
    (OverloadedError, 429),
    (ShutdownError, 503),
    (StageDiedError, 503),
    (StageStartError, 503),
    (DeadlineExceededError, 504),
    (StageInputTimeout, 504),
)
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
REQUEST_ID = "x-request-id"
"""The id that the call has in `/v1/antiphon/traces` and for an abort: the caller's, or ours."""
VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
ABORTED = 499
"""Status of a call that `/admin/abort` has ended: in no standard, but usual, and clients do not try
again as they do after 409 and 5xx."""
RETRY_AFTER_S = 5  # where nothing better is known
_MAX_MESSAGE = 2000  # characters; a message may quote what a caller has sent


class ApiError(HTTPException):
    """An answer that is an error; raised anywhere in a handler before its response has begun.

    `code` is for programs, `param` names the field that is to blame, if one is. FastAPI lets an
    HTTPException through where it reads bodies, and nothing else.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        if len(message) > _MAX_MESSAGE:  # what to do about it stands at the end
            message = f"{message[: _MAX_MESSAGE // 2]} … {message[-_MAX_MESSAGE // 2 :]}"
        super().__init__(status, message)
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def type(self) -> str:
        """OpenAI's word for the kind of error."""
        fallback = "invalid_request_error" if self.status_code < 500 else "server_error"
        return _TYPES.get(self.status_code, fallback)

    def body(self) -> dict[str, object]:
        """The object that is sent under the key `error`."""
        return {
            "message": self.detail,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }

    def to_json(self) -> bytes:
        """The whole body. ASCII, as a message may quote what cannot be encoded."""
        return json.dumps({"error": self.body()}).encode()

    def response(self, call: Headers | None = None) -> Response:
        """The answer to a call with these headers: it has the id that the caller gave."""
        headers = {}
        given = "" if call is None else call.get(REQUEST_ID, "")
        if VALID_ID.fullmatch(given):
            headers[REQUEST_ID] = given
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        return Response(
            self.to_json(), self.status_code, headers=headers, media_type="application/json"
        )


def wrong(name: str, reason: str, code: str = "invalid_parameter") -> ApiError:
    """What is wrong with the field `name`; `reason` follows the name."""
    return ApiError(400, f"{name} {reason}", code=code, param=name)


def api_error(error: AntiphonError) -> ApiError:
    """The answer that an error of the runtime is."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    retry_after_s: float | None = None
    if isinstance(error, OverloadedError):
        retry_after_s = error.retry_after_s
    elif status == 503:
        retry_after_s = RETRY_AFTER_S
    return ApiError(status, str(error), code=error.code, retry_after_s=retry_after_s)


def install(app: FastAPI) -> None:
    """Have every error of `app` answered in this form."""

    @app.exception_handler(ApiError)
    async def _api(request: Request, error: ApiError) -> Response:
        return error.response(request.headers)

    @app.exception_handler(AntiphonError)
    async def _antiphon(request: Request, error: AntiphonError) -> Response:
        return api_error(error).response(request.headers)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0]
        return _validation(error, kind.strip()).response(request.headers)

    @app.exception_handler(Exception)
    async def _defect(request: Request, error: Exception) -> Response:
        # Starlette raises it again behind this answer, so that it is logged with its traceback.
        answer = ApiError(500, f"unexpected {type(error).__name__}", code="internal")
        return answer.response(request.headers)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        answer = ApiError(error.status_code, f"{error.detail}: {request.method} {request.url.path}")
        response = answer.response(request.headers)
        response.headers.update(error.headers or {})
        return response


def _validation(error: RequestValidationError, kind: str) -> ApiError:
    """The first of pydantic's complaints, in one sentence; `kind` is the body's type."""
    first = error.errors()[0]
    if first["loc"] == ("body",) and first["type"] != "missing" and kind != "application/json":
        return ApiError(
            400,
            f"the body is of type {kind or 'nothing'}; send JSON with content-type:"
            " application/json",
            code="invalid_content_type",
        )
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "it cannot be read")
        at = first["loc"][-1]
        return ApiError(
            400, f"the body is no JSON: {reason} at character {at}", code="invalid_json"
        )
    place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "header"))
    reason = str(first["msg"])
    message = f"{place}: {reason}" if place else reason
    return ApiError(400, message, code="invalid_parameter", param=place or None)
