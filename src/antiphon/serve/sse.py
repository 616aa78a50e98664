"""Server-sent events (WHATWG HTML, 9.2): lines of JSON, one after the other as they are made."""

from __future__ import annotations

from antiphon.errors import AntiphonError
from antiphon.serve.errors import ApiError, api_error

MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"
"""The end of an answer that is whole; none of another."""


def event(json: bytes) -> bytes:
    """One event."""
    return b"data: %b\n\n" % json


def error_event(error: AntiphonError | ApiError) -> bytes:
    """The end of an answer that failed while it was under way; OpenAI's clients raise it."""
    answer = error if isinstance(error, ApiError) else api_error(error)
    return event(answer.to_json())
