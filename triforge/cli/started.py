"""The deployment that a training uses: one that runs, or one that it starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from triforge.cli.checks import demand_models
from triforge.cli.deployment import DOCUMENT, settings
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.config import Settings, parse, write_document
from triforge.errors import TriforgeError
from triforge.supervisor.layout import plan_layout
from triforge.supervisor.supervise import ADDRESSES, Supervisor, demand_free
from triforge.types import ENDED

Tell = Callable[[str], None]
_ANSWER_S: Final = 3.0
_LOOK_S: Final = 3.0  # between two looks at runs of other commands


@contextlib.asynccontextmanager
async def clients_of(addresses: Settings) -> AsyncIterator[tuple[EnvAdapterClient, TrainerClient]]:
    """Open clients of a deployment's env_adapter and trainer."""
    key = addresses.key.get_secret_value()
    async with (
        EnvAdapterClient(addresses.env_adapter_url, api_key=key) as pools,
        TrainerClient(addresses.trainer_url, api_key=key) as trainer,
    ):
        yield pools, trainer


@contextlib.asynccontextmanager
async def deployment(
    document: Mapping[str, Any], state: Path, tell: Tell
) -> AsyncIterator[Settings]:
    """Use the deployment that runs in `state` or that the environment names; without one start what the document asks for."""
    addresses = deployed(state)
    if addresses is not None:
        tell(f"using the deployment at {addresses.trainer_url}")
        yield addresses
        return
    demand_free(state)
    path, config = state / DOCUMENT, parse(document)
    layout = plan_layout(
        config, Settings.from_env(), config_path=path, state=state, auto_ports=True
    )
    demand_models(config, layout.settings)
    for line in layout.placement.lines():
        tell(f"plan: {line}")
    tell(f"starting {', '.join(spec.name for spec in layout.specs)}")
    supervisor = Supervisor(layout, state, report=tell)
    try:
        with _written(document, path, tell):
            await supervisor.start()
        watching = asyncio.create_task(supervisor.watch())
        try:
            yield settings(state)
            async with clients_of(settings(state)) as (_, trainer):
                await others_ended(trainer, tell)
        finally:
            watching.cancel()
    finally:
        await supervisor.stop()


@contextlib.contextmanager
def _written(document: Mapping[str, Any], path: Path, tell: Tell) -> Iterator[None]:
    """Write the document of a start; put the previous one back where the start fails."""
    before = path.read_bytes() if path.is_file() else None
    write_document(path, document)
    try:
        yield
    except BaseException as error:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)
        if isinstance(error, asyncio.CancelledError):
            tell("stopped before a run was made")
        raise


async def others_ended(trainer: TrainerClient, tell: Tell, pause_s: float = _LOOK_S) -> None:
    """Wait until the runs of other commands, which use this deployment, have ended and been read; Ctrl-C waits no longer."""
    with contextlib.suppress(asyncio.CancelledError, TriforgeError):
        named = ""
        while others := ", ".join(r.id for r in await trainer.runs() if r.status not in ENDED):
            if others != named:
                tell(
                    f"waiting for {others} of another command, which uses this deployment; Ctrl-C stops it"
                )
            named = others
            await asyncio.sleep(pause_s)
        if named:
            await asyncio.sleep(pause_s)


def deployed(state: Path) -> Settings | None:
    """Return the addresses of a deployment that answers: that of the folder, or the one that the environment names."""
    addresses = settings(state)
    if not ((state / ADDRESSES).is_file() or "TRIFORGE_TRAINER_URL" in os.environ):
        return None
    try:
        reply = httpx.get(f"{addresses.trainer_url}/readyz", timeout=_ANSWER_S, trust_env=False)
    except httpx.HTTPError:
        return None
    return addresses if reply.is_success else None
