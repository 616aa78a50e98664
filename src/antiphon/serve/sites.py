"""Which web pages may call: any page that somebody reads can reach a server on their machine."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from antiphon.serve.errors import ApiError
from antiphon.serve.settings import ServeSettings


def check_site(headers: Headers, settings: ServeSettings) -> None:
    """Raise ApiError 403 for a page of another site.

    Without a key a server for this machine alone answers to names of this machine alone: a page
    whose name is made to lead here (DNS rebinding) would count as the server's own.
    """
    allowed = settings.allow_origins
    if "*" in allowed:
        return
    host, origin = headers.get("host", ""), headers.get("origin")
    if settings.api_key is None and _is_local(settings.host) and not _known(host, allowed):
        raise ApiError(
            403,
            f"this server is for its own machine and not known as {host[:256]!r}; start it with"
            " --allow-origin, or with --api-key",
            code="host_not_allowed",
        )
    if origin is not None and origin not in allowed and _host_of(origin) != host:
        raise ApiError(
            403,
            f"pages of {origin[:256]} may not call this server; start it with --allow-origin",
            code="origin_not_allowed",
        )


def _known(host: str, allowed: tuple[str, ...]) -> bool:
    name = _name_of(host)
    own = _is_local(name) or _is_address(name) or not host  # HTTP/1.0 has none, and no pages
    return own or host in {_host_of(origin) for origin in allowed}


def _is_local(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _name_of(host: str) -> str:
    """Of a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _host_of(origin: str) -> str | None:
    """Host and port of an origin; None if it has none."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None
