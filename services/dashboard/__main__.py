"""`python -m services.dashboard`: the only wiring of this service."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit


def main(arguments: Sequence[str] = ()) -> int:
    """Serve the pages."""
    argparse.ArgumentParser(
        prog="python -m services.dashboard",
        description="Serve the pages that people look at, until SIGTERM.",
        epilog="Addresses and secrets: environment variables named TRIFORGE_..., see docs/configuration.md.",
    ).parse_args(arguments)
    import uvicorn

    from services.dashboard.apis import Apis
    from services.dashboard.app import create_app
    from triforge.access.exposure import demand_safe
    from triforge.config import Settings
    from triforge.errors import TriforgeError
    from triforge.telemetry import begin, server_options
    from triforge.web.origins import policy_of
    from triforge.web.server import careful

    begin("dashboard", "api")
    try:
        settings = Settings.from_env()
        if not settings.keyed:  # else the APIs ask, and nothing of ours is needed
            demand_safe(settings)
    except TriforgeError as error:
        logging.getLogger(__name__).error("%s", error.detail)
        return 2
    names = ["trainer", "env_adapter", "reward", "policy_model", "reward_model", "rewriter_model"]
    addresses = {
        name: str(getattr(settings, f"{name}_url")) for name in names if settings.has(name)
    }
    apis = Apis({name: url.partition("#")[0] for name, url in addresses.items()})
    config = uvicorn.Config(
        create_app(apis=apis, origins=policy_of(settings)),
        host=settings.host,
        port=urlsplit(settings.dashboard_url).port or 8005,
        **server_options(),
        **careful(),
        timeout_graceful_shutdown=2,  # pages that listen to events never end by themselves
    )
    uvicorn.Server(config).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
