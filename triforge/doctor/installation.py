"""All checks of an installation, in the order in which one fault explains the next."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from triforge.config import RunConfig, Settings
from triforge.doctor.deployment import artifacts, broker, database, services
from triforge.doctor.local import (
    LEARNER,
    LOCAL_ENGINE,
    Finding,
    disks,
    extras,
    models,
    packages,
    sandbox,
)
from triforge.errors import TriforgeError
from triforge.supervisor.layout import plan_layout


async def examine(
    settings: Settings,
    *,
    state: Path,
    config: RunConfig | None = None,
    document: Path | None = None,
    idle: str = "",
) -> list[Finding]:
    """Check a deployment that runs, or with `config` and its path `document` what a start of it would meet.

    `idle` says that none runs; then it is this machine alone, where missing packages may not be wanted.
    """
    starts = config is not None
    findings = [*disks(_folders(settings, state, starts=starts)), *sandbox()]
    if config is not None and document is not None:
        start, local_engine = _start(config, settings, document, state)
        wanted = LEARNER | (LOCAL_ENGINE if local_engine else {}) | extras(settings, config)
        return [*findings, *packages(wanted), *models(config), start]
    wanted = extras(settings, None)
    if idle:
        found = packages(LEARNER | LOCAL_ENGINE | wanted)
        mild = [replace(one, state="warning") if one.state == "bad" else one for one in found]
        return [*findings, *mild, Finding("deployment", "ok", idle)]
    findings += packages(wanted) if wanted else []
    findings.append(await asyncio.to_thread(database, settings.database_url))
    findings.append(await asyncio.to_thread(artifacts, settings.artifacts_url))
    return [*findings, *await broker(settings), *await services(settings)]


def _start(
    config: RunConfig, settings: Settings, document: Path, state: Path
) -> tuple[Finding, bool]:
    """Plan a start, which checks ports, model folders and the broker; also return whether it includes a local engine."""
    try:
        layout = plan_layout(config, settings, config_path=document, state=state)
    except TriforgeError as error:
        mend = "mend what it names and run the command again, because it names the first fault only"
        return Finding("start", "bad", error.detail, mend), True
    names = [spec.name for spec in layout.specs]
    text = f"would start {', '.join(names)}; their ports are free"
    local = config.machine.serving == "local"
    return Finding("start", "ok", text), local and any(name.startswith("engine-") for name in names)


def _folders(settings: Settings, state: Path, *, starts: bool) -> list[Path]:
    """Return the folders of the files; a start puts below `state` what the environment does not name."""
    folders, named = [state], settings.model_fields_set
    if starts and not {"artifacts_url", "database_url"} & named:
        return folders
    address, _, weights = settings.artifacts_url.partition("#/")
    folders += [Path(address)] if "://" not in address else []
    folders += [Path(f"/{weights}")] if weights else []
    if settings.database_url.startswith("sqlite:///"):
        folders.append(Path(settings.database_url.removeprefix("sqlite:///")).parent)
    return folders
