"""The ports of one deployment."""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Final

from triforge.errors import ConfigError

_AUTO: Final = "--auto-ports"


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(port: int, option: str) -> None:
    """Raise ConfigError for a port that is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"port {port} ({option}) is taken ({error.strerror}); stop what uses it, set {option} to another, or "
                f"start with {_AUTO}"
            ) from None


class Ports:
    """The ports of a deployment, each used once; with `auto` free ones instead of the wanted ones.

    `reserved` ports are claimed later; `free` does not return them.
    """

    def __init__(self, *, auto: bool, reserved: Collection[int] = ()) -> None:
        self.auto = auto
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
        check_port(port, option)
        self._taken[port] = option
