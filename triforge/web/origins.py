"""Who may ask through a browser: its user opens any page, and the page may send requests to this machine.

A page shows itself by `Origin` and `Sec-Fetch-Site`, which no script can forge; one whose name was rebound to this machine
by the `Host` that it asks for; and without a preflight it can send no JSON.
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
from triforge.web.problems import of_error

JSON: Final = "application/json"
_READING: Final = ("GET", "HEAD", "OPTIONS")
_OWN_PAGES: Final = ("", "none", "same-origin")  # Sec-Fetch-Site; "none" is the address line


@dataclass(frozen=True, kw_only=True)
class OriginPolicy:
    """From which pages and under which names an API may be asked.

    Attributes:
        hosts: names under which it is asked beside addresses and names without a dot, which nobody else can own; None for
            any, where keys are asked for: a page has none.
        origins: web origins whose pages may ask.
        navigation: whether links lead here.
    """

    hosts: frozenset[str] | None = frozenset()
    origins: frozenset[str] = frozenset()
    navigation: bool = True

    def demand(self, scope: Scope, media: tuple[str, ...]) -> None:
        """Pass a request whose body is of one of `media`; ForbiddenError or MediaTypeError for what only a page would send."""
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if self.hosts is not None and not (host == "" or _is_ours(host, self.hosts)):
            raise ForbiddenError(
                f"Host: given {host[:80]!r}, expected an address, a name without a dot or a host of this deployment; name "
                "it in TRIFORGE_OWN_HOSTS, or ask for keys (TRIFORGE_AUTH=keys)"
            )
        changes = scope["type"] == "websocket" or scope["method"] not in _READING
        self._demand_own_page(headers, host, changes=changes)
        if changes and scope["type"] == "http":
            _demand_media(headers, media)

    def _demand_own_page(self, headers: Headers, host: str, *, changes: bool) -> None:
        origin = headers.get("origin", "").lower()
        if origin in self.origins:
            return
        if not changes and self.navigation and headers.get("sec-fetch-mode") == "navigate":
            return
        foreign = origin not in ("", f"http://{host}", f"https://{host}")
        site = headers.get("sec-fetch-site", "")
        if (foreign and (changes or not self.navigation)) or site not in _OWN_PAGES:
            raise ForbiddenError(
                f"Origin: given {(origin or site)[:80]!r}, a page of somebody else; TRIFORGE_CORS_ORIGINS names those that may ask"
            )


def _is_ours(host: str, names: frozenset[str]) -> bool:
    """Whether a Host is one that no stranger's name server can lead here."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if "." not in name.rstrip(".") or name in names or name.endswith(".localhost"):
        return ":" not in name or _is_address(name)
    return _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _demand_media(headers: Headers, media: tuple[str, ...]) -> None:
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
    if given not in media and (given or not empty):
        raise MediaTypeError(
            f"body: given {given[:80] or 'no media type'}, expected {' or '.join(media)}, and the header "
            f"`Content-Type: {media[0]}` that says so"
        )


def policy_of(settings: Settings) -> OriginPolicy:
    """The policy of a service, by the deployment's settings."""
    origins = (origin.strip().lower() for origin in settings.cors_origins.split(","))
    dashboard = urlsplit(settings.dashboard_url).hostname or ""
    return OriginPolicy(
        hosts=None
        if settings.keyed
        else frozenset({*settings.service_hosts, dashboard, settings.host}),
        origins=frozenset(origin for origin in origins if origin),
    )


class OriginGuard:
    """ASGI middleware that refuses what the policy does not pass; `media` are further media types of bodies, by method and path."""

    def __init__(
        self, app: ASGIApp, *, policy: OriginPolicy, media: Mapping[str, str] | None = None
    ) -> None:
        self._app, self._policy, self._media = app, policy, media or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one event."""
        try:
            if scope["type"] in ("http", "websocket"):
                also = self._media.get(f"{scope.get('method', '')} {scope['path']}")
                self._policy.demand(scope, (JSON, also) if also else (JSON,))
        except TriforgeError as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await of_error(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)
