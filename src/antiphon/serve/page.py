"""The playground: one static page at `/` and its files under `/page/`, open to everybody.

The page is a client of the API like any other; it is given nothing that callers are not.
"""

from __future__ import annotations

import hashlib
import importlib.resources
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

_SCRIPT = "text/javascript; charset=utf-8"
_STYLE = "text/css; charset=utf-8"
FILES = {
    "index.html": "text/html; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "style.css": _STYLE,
    "turns.css": _STYLE,
    "api.js": _SCRIPT,
    "app.js": _SCRIPT,
    "ask.js": _SCRIPT,
    "composer.js": _SCRIPT,
    "conversation.js": _SCRIPT,
    "dom.js": _SCRIPT,
    "pcm.js": _SCRIPT,
    "player.js": _SCRIPT,
    "recorder.js": _SCRIPT,
    "recorder-worklet.js": _SCRIPT,
    "server.js": _SCRIPT,
    "settings.js": _SCRIPT,
    "timeline.js": _SCRIPT,
    "turns.js": _SCRIPT,
    "waveform.js": _SCRIPT,
    "words.js": _SCRIPT,
}
"""Every file of the page and its media type."""
_INDEX = "index.html"
PATHS = frozenset({"/"} | {f"/page/{name}" for name in FILES if name != _INDEX})

# Everything comes from this server, nothing is written into the page itself, nobody frames it.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    # Small files: a browser keeps them and asks each time whether they have changed, so that the
    # page is never of another version than the server.
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "microphone=(self)",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    headers: dict[str, str]

    def answer(self, request: Request) -> Response:
        """The file, or 304 for who has it."""
        tags = request.headers.get("if-none-match", "")
        if self.headers["etag"] in (tag.strip().removeprefix("W/") for tag in tags.split(",")):
            return Response(status_code=304, headers=self.headers)
        return Response(self.content, headers=self.headers)


def page_router() -> APIRouter:
    """`/` and `/page/NAME`; the files are read once, here."""
    router = APIRouter()
    for name in FILES:
        path = "/" if name == _INDEX else f"/page/{name}"
        # HEAD is the server's affair: uvicorn sends no body for it.
        router.add_api_route(
            path, _load(name).answer, methods=["GET", "HEAD"], include_in_schema=False
        )
    return router


def _load(name: str) -> _File:
    content = importlib.resources.files("antiphon.serve").joinpath("page", name).read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return _File(content, {**_HEADERS, "content-type": FILES[name], "etag": etag})
