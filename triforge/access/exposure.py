"""Whether an API may listen where its settings say."""

from __future__ import annotations

import ipaddress
import logging

from triforge.config import Settings
from triforge.errors import ConfigError

_log = logging.getLogger(__name__)


def require_safe(settings: Settings) -> None:
    """Accept settings with which an API may be opened; warn where it is open to everybody.

    Raises:
        ConfigError: other machines can reach the API and TRIFORGE_AUTH does not permit it, or the secret is missing.
    """
    if settings.keyed:
        settings.require_secret()
    elif settings.auth == "open" and not is_loopback(settings.host):
        _log.warning(
            "TRIFORGE_AUTH is 'open' and this service listens on %s: every machine that reaches it has all rights",
            settings.host,
        )
    elif not is_loopback(settings.host):
        raise ConfigError(
            f"TRIFORGE_HOST: given {settings.host!r}, which other machines can reach without a key: set "
            "TRIFORGE_AUTH=keys and TRIFORGE_SERVICE_SECRET, or TRIFORGE_AUTH=open in a network that you trust"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a listener on this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
