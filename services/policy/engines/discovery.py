"""Where a pool's engines are: a list of addresses, names that are resolved again and again, or SGLang's router.

http://host:port            one engine
dns+http://name:port        one engine for every address of the name, as of a headless Kubernetes service
router+http://host:port     SGLang's router; its workers are the engines, and it spreads the requests over them
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol
from urllib.parse import urlsplit

from triforge.errors import ConfigError, TriforgeError

_log = logging.getLogger(__name__)

RESOLVE_S = 5.0  # seconds between two looks at who is there
_ANSWER_S = 5.0  # a name server that takes longer has not answered
Kind = Literal["address", "dns", "router"]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
_SCHEMES: dict[str, tuple[Kind, str]] = {
    "http": ("address", "http"),
    "https": ("address", "https"),
    "dns": ("dns", "http"),
    "dns+http": ("dns", "http"),
    "router+http": ("router", "http"),
    "router+https": ("router", "https"),
}


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of TRIFORGE_ENGINES."""

    kind: Kind
    url: str


def parse_sources(text: str, option: str = "TRIFORGE_ENGINES") -> list[Source]:
    """The entries of a comma-separated list."""
    sources = [_source(entry.strip(), option) for entry in text.split(",") if entry.strip()]
    if not sources:
        raise ConfigError(f"{option}: given none, expected at least one engine's address")
    if len(sources) > 1 and any(source.kind == "router" for source in sources):
        raise ConfigError(f"{option}: a router stands alone; given {len(sources)} entries: {text}")
    return sources


def _source(entry: str, option: str) -> Source:
    scheme, found, rest = entry.partition("://")
    if scheme == "dns+https":
        raise ConfigError(
            f"{option}: {entry}: the addresses behind a name do not match its certificate; use dns+http or name each engine"
        )
    kind, plain = _SCHEMES.get(scheme, ("address", ""))
    url = f"{plain}://{rest}".rstrip("/")
    try:
        parts = urlsplit(url)
        port = parts.port  # read here, because a port that is no number shows only when it is
        good = bool(found and plain and parts.hostname) and (kind != "dns" or bool(port))
    except ValueError:
        good = False
    if not good:
        raise ConfigError(
            f"{option}: given {entry!r}, expected http://host:port, dns+http://name:port or router+http://host:port"
        )
    return Source(kind, url)


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, as this machine resolves it."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(item[4][0]) for item in found]


class Workers(Protocol):
    """A router's list of those behind it."""

    url: str

    async def workers(self) -> Sequence[str]:
        """Addresses of the workers that the router sends requests to."""


class Directory:
    """Who is there, asked again every few seconds. What cannot be found out leaves things as they were.

    `router` is asked for its workers if `sources` is empty.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        router: Workers | None = None,
        resolve: Resolve = resolve,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = list(sources)
        self._router = router
        self._resolve = resolve
        self._clock = clock
        self._again_at = 0.0
        self._last: dict[str, list[str]] = {}

    async def find(self) -> list[str] | None:
        """Addresses of all engines, in order and each once; None if it is too early to look again."""
        if self._clock() < self._again_at:
            return None
        self._again_at = self._clock() + RESOLVE_S
        found: list[str] = []
        for source in self._sources:
            found += [source.url] if source.kind == "address" else await self._addresses(source.url)
        if self._router is not None and not self._sources:
            found += await self._behind(self._router)
        return list(dict.fromkeys(found))

    async def _addresses(self, url: str) -> list[str]:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 0
        try:
            async with asyncio.timeout(_ANSWER_S):
                hosts = await self._resolve(host, port)
        except (OSError, TimeoutError) as error:
            return self._as_before(url, f"{url}: {type(error).__name__}: {error}")
        if not hosts:
            return self._as_before(url, f"{url}: it has no address")
        self._last[url] = sorted({f"http://{_bracketed(found)}:{port}" for found in hosts})
        return self._last[url]

    async def _behind(self, router: Workers) -> list[str]:
        try:
            self._last[router.url] = sorted(await router.workers())
        except TriforgeError as error:
            return self._as_before(router.url, error.detail)
        return self._last[router.url]

    def _as_before(self, url: str, reason: str) -> list[str]:
        """A name server or a router that is away says nothing about the engines."""
        known = self._last.get(url, [])
        _log.warning("%s; keeping the %d engines known before", reason, len(known))
        return known


def _bracketed(host: str) -> str:
    return f"[{host}]" if ipaddress.ip_address(host.partition("%")[0]).version == 6 else host
