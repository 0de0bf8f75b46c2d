"""All checks of an installation, in the order in which a fault of one explains those below it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from triforge.config import RunConfig, Settings
from triforge.doctor.local import (
    LEARNER,
    LOCAL_ENGINE,
    Finding,
    bad,
    disks,
    extras,
    models,
    ok,
    packages,
    sandbox,
)
from triforge.doctor.services import engines, services
from triforge.doctor.stores import artifacts, broker, database
from triforge.errors import TriforgeError
from triforge.supervisor.layout import Layout, plan_layout


async def examine(
    settings: Settings,
    *,
    state: Path,
    config: RunConfig | None = None,
    document: Path | None = None,
) -> list[Finding]:
    """Check a deployment that runs, or with `config` and its path `document` what a start of it would meet."""
    found = [*disks(_folders(settings, state, starts=config is not None)), *sandbox()]
    if config is not None and document is not None:
        layout, planned = _plan(config, settings, document, state)
        serves = layout is None or any(spec.name.startswith("engine-") for spec in layout.specs)
        wanted = LEARNER | (LOCAL_ENGINE if serves else {}) | extras(settings, config)
        return [*found, *packages(wanted), *models(config), *planned]
    asked = extras(settings, None)
    found += packages(asked) if asked else []
    found += await asyncio.to_thread(database, settings.database_url)
    found += await asyncio.to_thread(artifacts, settings.artifacts_url)
    return [*found, *await broker(settings), *await services(settings), *await engines(settings)]


def _plan(
    config: RunConfig, settings: Settings, document: Path, state: Path
) -> tuple[Layout | None, list[Finding]]:
    """What `triforge up` would start; its ports, model folders and broker are checked on the way."""
    try:
        layout = plan_layout(config, settings, config_path=document, state=state)
    except TriforgeError as error:
        mend = "change what it names; then ask again, there may be more"
        return None, [bad("start", error.detail, mend)]
    names = ", ".join(spec.name for spec in layout.specs)
    return layout, [ok("start", f"would start {names}; their ports are free")]


def _folders(settings: Settings, state: Path, *, starts: bool) -> list[Path]:
    """Where files will lie: what the environment does not name, a start puts below `state`."""
    named, given = [state], settings.model_fields_set
    if starts and not {"artifacts_url", "database_url"} & given:
        return named
    address, _, beside = settings.artifacts_url.partition("#")
    local = beside if "://" in address else settings.artifacts_url
    if local:
        named.append(Path(local))
    if settings.database_url.startswith("sqlite:///"):
        named.append(Path(settings.database_url.removeprefix("sqlite:///")).parent)
    return named
