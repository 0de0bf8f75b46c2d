"""The trainer's API over a recorded run, and the dashboard's pages over that API, all in this process."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.dashboard.apis import Apis
from services.dashboard.app import create_app as dashboard_app
from services.trainer.app import create_app as trainer_app
from services.trainer.runs.runs import Runs
from tests.unit.dashboard.recorded_run import RecordedRun, recorded_run
from triforge.config import Settings
from triforge.store.database import Database


def _database(folder: Path, empty_store: Path) -> Database:
    return Database(f"sqlite:///{shutil.copy(empty_store, folder)}")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[RecordedRun]:
    """One for all tests of a file, which only read it."""
    folder = tmp_path_factory.mktemp("recorded")
    database = _database(folder, empty_store)
    yield recorded_run(database, folder)
    database.close()


@pytest.fixture
def own(tmp_path: Path, empty_store: Path) -> Iterator[RecordedRun]:
    """One that a test may change."""
    database = _database(tmp_path, empty_store)
    yield recorded_run(database, tmp_path)
    database.close()


@pytest.fixture(scope="module")
def trainer(recorded: RecordedRun) -> httpx.ASGITransport:
    return trainer_of(recorded)


def trainer_of(recorded: RecordedRun) -> httpx.ASGITransport:
    """The trainer's routes; nothing here asks env_adapter or Redis."""
    nothing: Any = None
    runs = Runs(
        store=recorded.store, pools=nothing, broker=nothing, artifacts=recorded.artifacts, settings=Settings(),
    )  # fmt: skip

    async def ready() -> None:
        pass

    return httpx.ASGITransport(trainer_app(runs=runs, orchestrator=None, ready=ready))


@pytest.fixture
async def pages(trainer: httpx.ASGITransport) -> AsyncIterator[httpx.AsyncClient]:
    """A browser on the dashboard."""
    apis = Apis({"trainer": "http://trainer", "env_adapter": "http://trainer"}, transport=trainer)
    app = httpx.ASGITransport(dashboard_app(apis=apis))
    async with httpx.AsyncClient(transport=app, base_url="http://dashboard") as client:
        yield client
    await apis.close()
