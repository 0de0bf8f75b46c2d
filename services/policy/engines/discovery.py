"""Where a pool's engines are: a list of addresses, and names that are resolved again and again.

http://host:port        one engine
dns+http://name:port    one engine for every address of the name, as of a headless Kubernetes service
vllm+http://..., vllm+dns+http://...    likewise engines that are vLLM; the others speak SGLang's API
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from triforge.errors import ConfigError

_log = logging.getLogger(__name__)

RESOLVE_S = 5.0  # seconds between two look-ups of a name
_ANSWER_S = 5.0  # a name server that takes longer has not answered
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
_SCHEMES = {"http": "http", "https": "https", "dns": "http", "dns+http": "http"}
VLLM = "vllm+"  # before the address of an engine that is vLLM


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of TRIFORGE_ENGINES: an engine's address, or with `by_name` a name with the addresses of several."""

    url: str
    by_name: bool = False


def parse_sources(text: str) -> list[Source]:
    """Parse a comma-separated list."""
    sources = [_source(entry.strip()) for entry in text.split(",") if entry.strip()]
    if not sources:
        raise ConfigError("TRIFORGE_ENGINES: given none, expected at least one engine's address")
    return sources


def _source(entry: str) -> Source:
    whole, separator, rest = entry.partition("://")
    scheme = whole.removeprefix(VLLM)
    if scheme == "dns+https":
        raise ConfigError(
            f"TRIFORGE_ENGINES: {entry}: the addresses of a name do not match its certificate; use dns+http or name each engine"
        )
    kind = VLLM if scheme != whole else ""
    source = Source(f"{kind}{_SCHEMES.get(scheme)}://{rest}".rstrip("/"), scheme.startswith("dns"))
    try:
        parts = urlsplit(source.url)
        port = parts.port  # raises ValueError for a port that is no number
        valid = bool(separator and scheme in _SCHEMES and parts.hostname)
        valid = valid and (bool(port) or not source.by_name)
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(
            f"TRIFORGE_ENGINES: given {entry!r}, expected http://host:port or dns+http://name:port"
        )
    return source


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a name, as this machine resolves it."""
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in infos]


class Directory:
    """The addresses of all engines, looked up again every few seconds. A failed look-up keeps those known before."""

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        resolve: Resolve = resolve,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = list(sources)
        self._resolve = resolve
        self._clock = clock
        self._again_at = 0.0
        self._last: dict[str, list[str]] = {}

    async def find(self) -> list[str] | None:
        """Return the addresses, in order and each once; None if it is too early to look again."""
        if self._clock() < self._again_at:
            return None
        self._again_at = self._clock() + RESOLVE_S
        urls: list[str] = []
        for source in self._sources:
            urls += await self._addresses(source.url) if source.by_name else [source.url]
        return list(dict.fromkeys(urls))

    async def _addresses(self, url: str) -> list[str]:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 0
        try:
            async with asyncio.timeout(_ANSWER_S):
                hosts = await self._resolve(host, port)
            if not hosts:
                raise OSError("it has no address")
        except (OSError, TimeoutError) as error:
            known = self._last.get(url, [])
            _log.warning("%s: %r; keeping the %d engines known before", url, error, len(known))
            return known
        self._last[url] = sorted(
            {f"{parts.scheme}://{_bracketed(address)}:{port}" for address in hosts}
        )
        return self._last[url]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ipaddress.ip_address(host.partition("%")[0]).version == 6 else host
