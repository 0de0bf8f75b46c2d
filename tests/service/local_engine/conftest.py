"""A local engine over in-process ASGI."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from services.local_engine.engine import Engine
from tests.unit.local_engine.models import build_folder, new_engine
from tests.unit.local_engine.wire import client_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_folder(tmp_path_factory.mktemp("models") / "first", seed=0)


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_folder(tmp_path_factory.mktemp("models") / "second", seed=1)


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    made = new_engine(folder)
    made.start()
    yield made
    made.stop()


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(engine) as opened:
        yield opened
