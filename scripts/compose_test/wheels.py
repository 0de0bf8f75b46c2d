"""A package index for builders that have none: the folder of wheels, served to the containers of this machine's engine."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from scripts.compose_test.engine import Docker

_PORT = 18473  # the same each time: it stands in the builder's arguments, by which layers are found again


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def wheel_server(docker: Docker, wheels: Path) -> Iterator[str]:
    """Serve the wheels on the engine's own bridge while the body runs; yields pip's arguments.

    So the wheels need not travel to the builder with every image, nor lie in a layer.

    Raises:
        OSError: the bridge is not on this machine, or the port is taken.
    """
    about = json.loads(docker("network", "inspect", "bridge"))[0]["IPAM"]["Config"][0]
    # an engine that has just made its bridge does not name the gateway yet: it is the subnet's first address
    gateway = about.get("Gateway") or str(next(ipaddress.ip_network(about["Subnet"]).hosts()))
    server = ThreadingHTTPServer((gateway, _PORT), partial(_Quiet, directory=str(wheels)))
    thread = threading.Thread(target=server.serve_forever, daemon=True, name="wheels")
    thread.start()
    try:
        yield f"--no-index --find-links http://{gateway}:{_PORT}/ --trusted-host {gateway}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
