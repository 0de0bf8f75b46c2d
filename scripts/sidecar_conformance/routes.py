"""schemathesis against the sidecar's routes, of a deployment that works: without keys, and with a key that may submit."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI

from scripts.sidecar_conformance.programs import BEGINNER, TASKS, begin
from tests.service.env_service import api
from tests.service.keyed import Locks
from tests.service.sidecar_services import CONFIG, Deployment
from triforge.broker import SessionLog
from triforge.sidecar import Sidecar
from triforge.web.guard import Entrance

_CONFIG: Final = '[parameters]\n"path.pool" = "kitchen"\n'
# a report has rules that its schema cannot state (a result or an error, a reward for each answer); 0 is read as false, "1" as 1
_UNCHECKED: Final = "positive_data_acceptance,negative_data_rejection"
_COMMAND: Final = (
    "run", "--include-tag", "sidecar", "--exclude-checks", _UNCHECKED, "--continue-on-failure", "--max-examples", "200",
    "--seed", "1", "--no-color",
)  # fmt: skip


class Guarded(Deployment):
    """A deployment that records nothing, and asks for keys if it has an entrance."""

    entrance = Entrance()

    def app(self) -> FastAPI:
        return api(self.database, log=SessionLog(self.broker), entrance=self.entrance)


async def fuzz(python: Path, *, keyed: bool) -> None:
    """Send schemathesis to a deployment, with or without keys. AssertionError: it found something."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        deployment, headers = Guarded(folder, generate=TASKS), dict[str, str]()
        if keyed:
            locks = Locks(deployment.database)
            deployment.entrance, headers = locks.entrance(), locks.headers("submit")
        await deployment.start()
        stack.push_async_callback(deployment.close)
        deployment.submit(
            env_adapter=CONFIG["env_adapter"] | {"options": BEGINNER.options},
            run=CONFIG["run"] | {"groups_per_step": 16},
        )
        key = headers.get("Authorization", "").removeprefix("Bearer ")
        with Sidecar(deployment.url, "kitchen", key=key) as sidecar:
            drawn = await asyncio.to_thread(sidecar.draw, 24)
        (folder / "schemathesis.toml").write_text(_CONFIG, encoding="utf-8")
        words: list[Any] = [w for header in headers.items() for w in ("-H", ": ".join(header))]
        process = await begin(
            folder, stack, python, "-m", "schemathesis.cli", *_COMMAND, *words, f"{deployment.url}/openapi.json",
            SCHEMATHESIS_HOOKS="scripts.sidecar_conformance.fuzzed_reports",
            ROLLOUTS=" ".join(name for task in drawn for name in task.rollouts),
        )  # fmt: skip
        assert await process.wait() == 0, "schemathesis found something in the sidecar's routes"
