"""The ports of one deployment."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Collection
from typing import Final

from triforge.errors import ConfigError

_AUTO: Final = "--auto-ports"
_HERE: Final = "127.0.0.1"
_FIRST, _COUNT = 20_000, 10_000  # Linux gives outgoing connections 32,768 and above


def free_port(host: str = _HERE) -> int:
    """Return a port that is free now, below those of outgoing connections, which could take it before it is listened on."""
    while True:
        port = _FIRST + secrets.randbelow(_COUNT)
        with socket.socket(_family(host)) as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            return port


def check_port(port: int, option: str, host: str = _HERE) -> None:
    """Raise ConfigError for a port that is taken, or a host that this machine does not have."""
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(
                    f"TRIFORGE_HOST: given {host!r}, expected an address of this machine ({error.strerror})"
                ) from None
            raise ConfigError(
                f"port {port} ({option}) is taken ({error.strerror}); stop what uses it, set {option} to another, or "
                f"start with {_AUTO}"
            ) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class Ports:
    """The ports of a deployment, each used once; with `auto` free ones instead of the wanted ones.

    `reserved` ports are claimed later; `free` does not return them. Services listen on `host`, engines on 127.0.0.1.
    """

    def __init__(self, *, auto: bool, reserved: Collection[int] = (), host: str = _HERE) -> None:
        self.auto = auto
        self._hosts = dict.fromkeys((_HERE, host))
        self._reserved = frozenset(reserved)
        self._taken: dict[int, str] = {}

    def free(self) -> int:
        """Return a free port that was not returned before."""
        while (port := free_port()) in self._reserved | self._taken.keys():
            pass
        self._taken[port] = _AUTO
        return port

    def take(self, wanted: int, option: str, *, fixed: bool = False) -> int:
        """Return the wanted port, or with `auto` a free one unless the wanted one is `fixed`.

        ConfigError if it is taken, or another part of the deployment uses it as well.
        """
        if self.auto and not fixed:
            return self.free()
        self.claim(wanted, option)
        return wanted

    def claim(self, port: int, option: str) -> None:
        """Note a port that is decided. Raises as `take` does."""
        if self._taken.get(port, _AUTO) != _AUTO:
            raise ConfigError(
                f"port {port}: given to both {self._taken[port]} and {option}, expected a port of its own for each"
            )
        for host in self._hosts:
            check_port(port, option, host)
        self._taken[port] = option
