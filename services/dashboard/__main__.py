"""`python -m services.dashboard [--run RUN --to FOLDER]`: serve the pages, or write those of a run."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn

from services.dashboard.apis import Apis
from services.dashboard.app import create_app
from services.dashboard.folder import demand_new, pages_of, write
from triforge.access.exposure import require_safe
from triforge.config import Settings
from triforge.errors import TriforgeError
from triforge.telemetry import begin
from triforge.web.origins import policy_of
from triforge.web.server import config_of


def main(arguments: Sequence[str] = ()) -> int:
    """Serve the pages, or write those of a run."""
    parser = argparse.ArgumentParser(
        prog="python -m services.dashboard",
        description="Serve the web pages of a deployment until SIGTERM, or write those of one run into a folder.",
        epilog="Addresses and secrets are environment variables named TRIFORGE_..., see docs/reference/configuration.md (`make docs`).",
    )
    parser.add_argument("--run", help="id of a run whose pages are written")
    parser.add_argument("--to", type=Path, help="new folder of its pages")
    parser.add_argument("--pages", type=int, default=1000, help="no further group after so many pages (default 1000)")  # fmt: skip
    options = parser.parse_args(arguments)
    if bool(options.run) != bool(options.to):
        parser.error("--run and --to go together")
    if not options.run:
        return _serve()
    return asyncio.run(_write(options.run, options.to, options.pages))


async def _write(run_id: str, target: Path, most: int) -> int:
    settings = Settings.from_env()
    apis = Apis.of(settings)
    try:
        demand_new(target)
        key = settings.key.get_secret_value()
        write(await pages_of(apis, key, run_id, most, tell=_tell), target)
    except (TriforgeError, OSError) as error:
        sys.stderr.write(f"triforge: {getattr(error, 'detail', error)}\n")
        return 1
    finally:
        await apis.close()
    sys.stdout.write(f"wrote {target / 'index.html'}\n")
    return 0


def _tell(pages: int) -> None:
    """Print a number of pages; a terminal shows the last one only."""
    end = "\r" if sys.stdout.isatty() else "\n"
    sys.stdout.write(f"{pages} pages{end}")
    sys.stdout.flush()


def _serve() -> int:
    begin("dashboard", "api")
    try:
        settings = Settings.from_env()
        if not settings.keyed:  # else the APIs ask for keys
            require_safe(settings)
    except TriforgeError as error:
        logging.getLogger(__name__).error("%s", error.detail)
        return 2
    app = create_app(apis=Apis.of(settings), origins=policy_of(settings))
    port = urlsplit(settings.dashboard_url).port or 8005
    patience = {"timeout_graceful_shutdown": 2}  # pages that listen to events never end
    uvicorn.Server(config_of(app, settings.host, port, **patience)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
