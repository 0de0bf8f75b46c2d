"""The addresses that pools and runs may make the workers connect to.

Tasks of some families name addresses. Through the workers, the author of a pool could reach addresses that only workers
reach: the services, the database, the metadata of the machines. `TRIFORGE_ENV_EGRESS` lists the allowed addresses. A name
is resolved once, for the connection, and the resolved address is checked, so a name server cannot change it in between.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import re
import socket
from contextlib import suppress
from typing import Any, Final, Self

import aiohttp
from yarl import URL

from triforge.config import Settings
from triforge.errors import ConfigError, EnvError, InputError

OPTION: Final = "TRIFORGE_ENV_EGRESS"
ANY, PUBLIC, DOCKER = "any", "public", "docker"
_NAME: Final = re.compile(r"(\*\.)?\w([\w.-]*\w)?")
_PORT: Final = re.compile(r"([^:]+|\[.*\]):([0-9]{1,5})")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_UNICAST: Final = ipaddress.ip_network("2000::/3")
# Networks that IANA's registries of special purposes exclude from the internet, and addresses that only the machines of a
# cloud reach. They are listed here because `is_global` differs between releases of Python. IPv6 addresses outside of
# `_UNICAST` are not public either: loopback, private, link-local, multicast, IPv4-compatible, own networks for NAT64.
_NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/3",  # multicast, reserved, broadcast
        "168.63.129.16/32",  # Azure's wire server
        "2001::/23",  # Teredo, benchmarks, ORCHID
        "2001:db8::/32", "3ffe::/16", "3fff::/20",
    )
)  # fmt: skip
_HOPS: Final = 5
_REDIRECTS: Final = (301, 302, 303, 307, 308)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class EgressPolicy:
    """The allowed addresses.

    `listed` holds `any`, `public`, `docker`, hosts (`envs`, `*.example.org`), addresses and networks (`10.1.0.0/16`), the
    last three with an optional port (`envs:8000`), separated by commas.
    """

    def __init__(self, listed: str = ANY) -> None:
        entries = [entry.strip().lower() for entry in listed.split(",") if entry.strip()]
        self.unbounded = ANY in entries
        self._public = PUBLIC in entries
        self._docker = DOCKER in entries
        places = [_place(one) for one in entries if one not in (ANY, PUBLIC, DOCKER)]
        self._hosts = [(place, port) for place, port in places if isinstance(place, str)]
        self._networks = [(place, port) for place, port in places if not isinstance(place, str)]

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the policy of a deployment; the default is `any` in a deployment without keys, else `public`."""
        return cls(settings.env_egress or (PUBLIC if settings.keyed else ANY))

    def demand_docker(self, what: str) -> None:
        """Raise an InputError that names the field `what`, unless containers may be started."""
        if not (self.unbounded or self._docker):
            raise InputError(f"{what}: starts containers on the workers' machine, {_REFUSED}")

    def demand(self, host: str, port: int, what: str, *, looked_up: bool = True) -> None:
        """Raise an InputError that names the field `what`, unless the address is allowed.

        `looked_up`: whether the address of a name is checked again for the connection; else only listed names pass.
        """
        host = host.lower().rstrip(".")
        address = _address(host)
        if address is None and (host == "localhost" or host.endswith(".localhost")):
            address = ipaddress.IPv4Address("127.0.0.1")
        named = self.unbounded or self._names(host, port)
        if not (named or (looked_up if address is None else self._allows(address, port))):
            raise InputError(f"{what}: given {host}:{port}, {_REFUSED}")

    def session(self, host: str, port: int, *, timeout_s: float) -> aiohttp.ClientSession:
        """Open a session to one server, in the event loop that uses it; it connects to allowed addresses only."""
        self.demand(host, port, "address")
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        if self.unbounded:
            return aiohttp.ClientSession(timeout=timeout)
        host = host.lower().rstrip(".")
        guarded = None if self._names(host, port) else self._socket
        redirects = aiohttp.TraceConfig()
        redirects.on_request_redirect.append(_refuse_redirect)
        return aiohttp.ClientSession(
            timeout=timeout,
            connector=aiohttp.TCPConnector(socket_factory=guarded),
            trace_configs=[redirects],
        )

    async def fetch(self, url: str, *, timeout_s: float, largest: int) -> bytes:
        """Fetch a file; addresses of redirects are checked as well."""
        try:
            at = URL(url)
            for _ in range(_HOPS):
                if not at.host or not at.port:
                    raise EnvError(f"{url}: expected an address such as https://host/file")
                session = self.session(at.host, at.port, timeout_s=timeout_s)
                async with session as http, http.get(at, allow_redirects=False) as answer:
                    if answer.status in _REDIRECTS and "location" in answer.headers:
                        at = at.join(URL(answer.headers["location"]))
                        continue
                    answer.raise_for_status()
                    return await _read(answer, largest)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise EnvError(f"{url}: {type(error).__name__}: {error}") from error
        raise EnvError(f"{url}: redirects more than {_HOPS} times")

    def _names(self, host: str, port: int) -> bool:
        return any(
            (host.endswith(name[1:]) if name[0] == "*" else host == name) and own in (None, port)
            for name, own in self._hosts
        )

    def _allows(self, address: Address, port: int) -> bool:
        if self._public and _is_public(address):
            return True
        return any(address in network and own in (None, port) for network, own in self._networks)

    def _socket(self, info: Any) -> socket.socket:
        family, kind, protocol, _, at = info
        address = _address(str(at[0]))
        if address is None or not self._allows(address, int(at[1])):
            raise PermissionError(errno.EACCES, f"{at[0]}:{at[1]}, {_REFUSED}")
        return socket.socket(family=family, type=kind, proto=protocol)


_REFUSED: Final = f"which {OPTION} does not allow; the operator can list it there"


def place_of(url: str) -> tuple[str, int]:
    """Return host and port of an http(s) address."""
    try:
        parts = URL(url)
        host, port = parts.host, parts.port
    except ValueError as error:
        raise InputError(f"{url!r} is no address: {error}") from None
    if not host or not port:
        raise InputError(f"{url!r} is no address such as http://host:port")
    return host, port


@functools.cache
def here() -> EgressPolicy:
    """Return the policy of this process's deployment."""
    return EgressPolicy.of(Settings.from_env())


async def _refuse_redirect(*_: object) -> None:
    message = f"the server redirects, which {OPTION} does not follow; name the last address"
    raise PermissionError(errno.EACCES, message)


async def _read(answer: aiohttp.ClientResponse, largest: int) -> bytes:
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > largest:
            raise EnvError(f"{answer.url} is larger than {largest} bytes")
    return bytes(body)


def _place(entry: str) -> tuple[str | Network, int | None]:
    """Return the host, domain or network of an entry, and its port; None for all ports."""
    match = _PORT.fullmatch(entry)
    host, port = (match[1], int(match[2])) if match else (entry, None)
    host, in_range = host.strip("[]"), port is None or 0 < port < 65536
    with suppress(ValueError):
        network = ipaddress.ip_network(host, strict=False)
        if in_range:
            return network, port
    if _NAME.fullmatch(host) is None or not in_range:
        raise ConfigError(
            f"{OPTION}: given {entry!r}, expected any, public, docker, or hosts, addresses and networks such as envs:8000, "
            "*.example.org, 10.1.0.0/16, separated by commas"
        )
    return host, port


def _is_public(address: Address) -> bool:
    if address.version == 6 and address not in _UNICAST:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def _address(host: str) -> Address | None:
    """Return a literal address without its wrapper (mapped, 6to4, NAT64); None for a name."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        return inner or address
    return address
