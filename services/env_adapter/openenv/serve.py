"""Wiring of a server: which family, which tasks, which port."""

from __future__ import annotations

import asyncio
import socket
from importlib.util import find_spec
from pathlib import Path

from triforge import __version__
from triforge.access.exposure import is_loopback
from triforge.environments import registry
from triforge.environments.rows import object_of, read_params
from triforge.errors import ConfigError, InputError, install_command


def serve(
    name: str,
    *,
    host: str,
    port: int,
    tasks: Path | None,
    count: int,
    seed: int,
    generate: str,
    options: str,
    sessions: int,
    idle: float,
) -> int:
    """Serve a family until it is stopped; prints its address first. Arguments: see `--help` of the command."""
    family = registry.family(name)
    if find_spec("wsproto") is None:
        raise ConfigError(
            f"serving needs wsproto, which is not installed: {install_command('openenv')}"
        )
    import uvicorn  # noqa: PLC0415  only who serves needs it

    from services.env_adapter.openenv.app import Served, create_app  # noqa: PLC0415
    from services.env_adapter.openenv.session import Tasks  # noqa: PLC0415
    from triforge.web.origins import OriginPolicy  # noqa: PLC0415
    from triforge.web.server import config_of  # noqa: PLC0415

    if sessions < 1 or idle <= 0:
        raise InputError(
            f"--sessions was {sessions} and --idle {idle:g}, expected at least 1 and more than 0"
        )
    play = object_of(options, "--options")
    family.make(play)
    params = read_params(tasks) if tasks else None
    if params is None:
        params = family.generate(count=count, seed=seed, options=object_of(generate, "--generate"))
    if not params:
        raise InputError("no task to serve: the file is empty, or --count is 0")
    about = registry.about(family)
    served = Served(
        tasks=Tasks(family, params),
        options=play,
        description=about.what if about else name,
        version=__version__,
        sessions=sessions,
        idle_s=idle,
        origins=OriginPolicy(hosts=frozenset() if is_loopback(host) else None),
    )
    config = config_of(create_app(served=served), host, port, ws="wsproto")
    server = uvicorn.Server(config)
    with socket.create_server((host, port)) as bound:
        where = f"http://{host}:{bound.getsockname()[1]}"
        print(f"{name}: {len(served.tasks)} tasks at {where}", flush=True)  # noqa: T201 (a command's output)
        asyncio.run(server.serve(sockets=[bound]))
    return 0
