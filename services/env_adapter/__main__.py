"""`python -m services.env_adapter api | rollout-worker | adapt-worker | demonstrations`: the only wiring of this room."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit


def api() -> int:
    """Serve pools, tasks, lineage and plans over REST."""
    import uvicorn

    from services.env_adapter.app import Parts, create_app
    from services.env_adapter.environments import registry
    from triforge.config import Settings
    from triforge.store.database import open_database

    settings = Settings.from_env()
    database = open_database(settings.database_url)
    app = create_app(parts=Parts(database=database, family=registry.family))
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=urlsplit(settings.env_adapter_url).port or 8003,
        log_level="warning",
        timeout_graceful_shutdown=5,
    )
    asyncio.run(uvicorn.Server(config).serve())
    return 0


COMMANDS = {"api": api}


def main(arguments: Sequence[str]) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m services.env_adapter", description=__doc__)
    parser.add_argument("command", choices=sorted(COMMANDS))
    known = parser.parse_args(arguments)
    return COMMANDS[known.command]()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
