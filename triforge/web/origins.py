"""Protection against web pages of others: a browser opens any page, and the page may send requests to this machine.

`Origin` and `Sec-Fetch-Site`, which no script can forge, show a foreign page. `Host` shows a page whose name was rebound to
this machine. Without a preflight a page can send no JSON.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from triforge.config import Settings
from triforge.errors import ForbiddenError, MediaTypeError, TriforgeError
from triforge.web.problems import problem_of

_JSON: Final = "application/json"
_READING: Final = ("GET", "HEAD", "OPTIONS")
_OWN_PAGES: Final = ("", "none", "same-origin")  # Sec-Fetch-Site; "none" is the address bar


@dataclass(frozen=True, kw_only=True)
class OriginPolicy:
    """The pages and host names that an API serves.

    Attributes:
        hosts: host names in addition to addresses and names without a dot, which only this network can resolve; None for
            any, where keys are required: a foreign page has no key.
        origins: web origins whose pages may send requests.
        navigation: whether links from other pages may lead here.
    """

    hosts: frozenset[str] | None = frozenset()
    origins: frozenset[str] = frozenset()
    navigation: bool = True

    def check(self, scope: Scope, media: tuple[str, ...]) -> None:
        """Accept a request whose body is of one of `media`; else raise ForbiddenError or MediaTypeError."""
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if self.hosts is not None and host and not _is_local(host, self.hosts):
            raise ForbiddenError(
                f"Host: given {host[:80]!r}, expected an address, a name without a dot or a host of this deployment; name "
                "it in TRIFORGE_OWN_HOSTS, or ask for keys (TRIFORGE_AUTH=keys)"
            )
        changes = scope["type"] == "websocket" or scope["method"] not in _READING
        self._check_origin(headers, host, changes=changes)
        if changes and scope["type"] == "http":
            _check_media(headers, media)

    def _check_origin(self, headers: Headers, host: str, *, changes: bool) -> None:
        origin = headers.get("origin", "").lower()
        if origin in self.origins:
            return
        if not changes and self.navigation and headers.get("sec-fetch-mode") == "navigate":
            return
        foreign = origin not in ("", f"http://{host}", f"https://{host}")
        site = headers.get("sec-fetch-site", "")
        if (foreign and (changes or not self.navigation)) or site not in _OWN_PAGES:
            raise ForbiddenError(
                f"Origin: given {(origin or site)[:80]!r}, a foreign page; TRIFORGE_CORS_ORIGINS names those that are served"
            )


def _is_local(host: str, names: frozenset[str]) -> bool:
    """Return whether a foreign name server cannot lead this Host here."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
        return True
    except ValueError:
        known = "." not in name.rstrip(".") or name in names or name.endswith(".localhost")
        return known and ":" not in name


def _check_media(headers: Headers, media: tuple[str, ...]) -> None:
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
    if content_type not in media and (content_type or not empty):
        raise MediaTypeError(
            f"body: given {content_type[:80] or 'no media type'}, expected {' or '.join(media)}; send the header "
            f"`Content-Type: {media[0]}`"
        )


def policy_of(settings: Settings) -> OriginPolicy:
    """Return the policy of a service from the deployment's settings."""
    origins = (origin.strip().lower() for origin in settings.cors_origins.split(","))
    dashboard = urlsplit(settings.dashboard_url).hostname or ""
    hosts = frozenset({*settings.service_hosts, dashboard, settings.host})
    return OriginPolicy(
        hosts=None if settings.keyed else hosts,
        origins=frozenset(origin for origin in origins if origin),
    )


class OriginGuard:
    """ASGI middleware that applies a policy; `media` are further media types of bodies, by method and path."""

    def __init__(
        self, app: ASGIApp, *, policy: OriginPolicy, media: Mapping[str, str] | None = None
    ) -> None:
        self._app, self._policy, self._media = app, policy, media or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one event."""
        try:
            if scope["type"] in ("http", "websocket"):
                also = self._media.get(f"{scope.get('method', '')} {scope['path']}")
                self._policy.check(scope, (_JSON, also) if also else (_JSON,))
        except TriforgeError as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await problem_of(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)
