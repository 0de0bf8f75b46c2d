"""`python -m services.dashboard`: the only wiring of this room."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit


def main(arguments: Sequence[str] = ()) -> int:
    """Serve the pages."""
    _parser().parse_args(arguments)
    import uvicorn

    from services.dashboard.app import create_app
    from services.dashboard.doors import Doors
    from services.doors.server import careful
    from triforge.access.modes import demand_safe
    from triforge.config import Settings
    from triforge.errors import TriforgeError
    from triforge.watching import begin, server_options

    begin("dashboard", "api")
    try:
        settings = Settings.from_env()
        if not settings.keyed:  # else the doors ask, and nothing of ours is needed
            demand_safe(settings)
    except TriforgeError as error:
        logging.getLogger(__name__).error("%s", error.detail)
        return 2
    rooms = ("trainer", "env_adapter", "reward", "acts", "judges", "rewrites")
    doors = Doors({name: str(getattr(settings, f"{name}_url")).partition("#")[0] for name in rooms})
    config = uvicorn.Config(
        create_app(doors=doors),
        host=settings.host,
        port=urlsplit(settings.dashboard_url).port or 8005,
        **server_options(),
        **careful(),
        timeout_graceful_shutdown=2,  # pages that listen to events never end by themselves
    )
    uvicorn.Server(config).run()
    return 0


def _parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog="python -m services.dashboard",
        description="Serve the pages that people look at, until SIGTERM.",
        epilog="Addresses and secrets: environment variables named TRIFORGE_..., see docs/configuration.md.",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
