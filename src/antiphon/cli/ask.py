"""Asks a running server something, with what Python brings along."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from antiphon.errors import InvalidRequestError, OperatorError, SettingError, StageError

TIMEOUT_S = 10.0  # without a byte
_MAX_BYTES = 64 << 20  # of an answer: who is asked may be no server of ours

T = TypeVar("T")


def get(url: str, path: str, api_key: str | None) -> bytes:
    """The body of the answer to `GET path` at the server `url`, if that is one of success.

    Raises SettingError for an address or a key that is wrong, InvalidRequestError for what the
    server has not got, OperatorError if it does not answer, StageError if it failed.
    """
    where = _address(url)
    kind = HTTPSConnection if where.scheme == "https" else HTTPConnection
    connection = kind(str(where.hostname), where.port, timeout=TIMEOUT_S)
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        connection.request("GET", where.path.rstrip("/") + path, headers=headers)
        response = connection.getresponse()
        body = response.read(_MAX_BYTES)
    except (OSError, HTTPException) as error:
        system = error.strerror if isinstance(error, OSError) else None
        why = system or str(error) or type(error).__name__
        raise OperatorError(
            f"no answer from {url} ({why}); is `antiphon serve` running there? see --url"
        ) from None
    except ValueError:  # http.client's own check of headers
        raise SettingError("the API key has characters that no key has; see --api-key") from None
    finally:
        connection.close()
    if response.status != 200:
        _refuse(response, body, url)
    return body


def decoded(body: bytes, kind: type[T], url: str) -> T:
    """`body` as what a server of ours says. Raises OperatorError if it is something else."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OperatorError(
            f"the server at {url} does not answer as `antiphon serve` does ({error}); see --url"
        ) from None


def _address(url: str) -> SplitResult:
    try:
        where = urlsplit(url)
        valid = where.scheme in ("http", "https") and where.hostname and where.port != 0
        url.encode("ascii")
    except ValueError:  # the port is no number, or something is not ASCII
        valid = False
    if not valid or any(c <= " " for c in url):
        raise SettingError(f"--url is {url!r}; give an address such as http://127.0.0.1:8000")
    return where


def _refuse(response: HTTPResponse, body: bytes, url: str) -> None:
    message = _message(body) or f"{response.status} {response.reason}"
    if response.status in (401, 403):
        raise SettingError(f"the server at {url} wants another key: {message}; see --api-key")
    if response.status == 404:
        raise InvalidRequestError(message)
    if response.status < 500:
        raise OperatorError(f"the server at {url} refused: {message}")
    raise StageError(f"the server at {url} failed: {message}")


class _Error(msgspec.Struct):
    message: str


class _Body(msgspec.Struct):
    error: _Error


def _message(body: bytes) -> str | None:
    """Of an error in OpenAI's form."""
    try:
        return msgspec.json.decode(body, type=_Body).error.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def indented(body: bytes) -> str:
    """JSON for people and programs; ASCII, which every terminal has."""
    return json.dumps(json.loads(body), indent=2)
