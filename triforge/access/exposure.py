"""Whether an API may be opened where its settings say."""

from __future__ import annotations

import ipaddress
import logging

from triforge.config import Settings
from triforge.errors import ConfigError

_log = logging.getLogger(__name__)


def demand_safe(settings: Settings) -> None:
    """Pass settings with which an API may be opened; says so loudly where it is open to everybody.

    Raises:
        ConfigError: other machines could ask and TRIFORGE_AUTH does not say that they may, or the secret is missing.
    """
    if settings.keyed:
        settings.demand_secret()
        return
    if is_loopback(settings.host):
        return
    if settings.auth == "open":
        _log.warning(
            "TRIFORGE_AUTH is 'open' and this service listens on %s: whoever reaches it may do everything",
            settings.host,
        )
        return
    raise ConfigError(
        f"TRIFORGE_HOST: given {settings.host!r}, where other machines can ask, and no keys are asked for: set "
        "TRIFORGE_AUTH=keys and TRIFORGE_SERVICE_SECRET, or TRIFORGE_AUTH=open where only friends can reach it"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
