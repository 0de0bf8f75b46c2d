"""Running the learner's API beside its training."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import torch
import uvicorn

from services.trainer.broadcast import Broadcaster
from services.trainer.broadcast_api import create_api
from triforge.config import Settings
from triforge.store.artifacts import ArtifactStore
from triforge.telemetry import server_options
from triforge.types import Handover


@contextlib.asynccontextmanager
async def open_api(
    broadcaster: Broadcaster, *, host: str, listen: str, admin_api_key: str = ""
) -> AsyncIterator[Handover]:
    """Serve the API at a port that the kernel chooses, as long as the block lasts.

    Args:
        broadcaster: what answers.
        host: name under which services reach this machine.
        listen: address to listen on.
        admin_api_key: bearer token that callers must send.
    """
    with socket.create_server((listen, 0)) as listener:
        app = create_api(broadcaster, admin_api_key=admin_api_key)
        config = uvicorn.Config(
            app, **server_options(), timeout_graceful_shutdown=1, lifespan="off"
        )
        server = uvicorn.Server(config)
        # In a thread of its own: there the server leaves the learner's signals alone.
        serving = asyncio.create_task(asyncio.to_thread(server.run, [listener]))
        try:
            yield Handover(url=f"http://{host}:{listener.getsockname()[1]}")
        finally:
            server.should_exit = True
            broadcaster.close()
            await serving


def broadcasts(
    store: ArtifactStore, settings: Settings, device: torch.device
) -> AbstractAsyncContextManager[Handover]:
    """The API of a learner as the settings want it. A GPU's tensors go over NCCL, a CPU's over gloo."""
    backend = settings.handover_backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    broadcaster = Broadcaster(
        store.local_path("weights"),
        host=settings.handover_host,
        device=device,
        backend=backend,
        timeout_s=settings.handover_timeout_s,
    )
    return open_api(
        broadcaster,
        host=settings.handover_host,
        listen=settings.host,
        admin_api_key=(settings.admin_api_key or settings.api_key).get_secret_value(),
    )
