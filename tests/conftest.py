"""Settings of all tests: hypothesis draws the same examples each time, and xdist keeps related tests together."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from triforge.sandbox.client import Sandbox
from triforge.store.database import Database, open_database

settings.register_profile("triforge", deadline=None, derandomize=True)
settings.load_profile("triforge")

TESTS = Path(__file__).parent
# The slow folders start first, so that no worker is left alone with them at the end.
FIRST = ("e2e", "one_process", "service")


class KeepTogether(LoadFileScheduling):
    """Tests of one file run on one worker, and all of tests/e2e on the same one.

    Whole loops of processes would otherwise compete with one another. xdist's own `loadgroup` does not group under
    pytest 9.2 (pytest-xdist issue 1386).
    """

    def _split_scope(self, nodeid: str) -> str:
        return "tests/e2e" if nodeid.startswith("tests/e2e/") else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> KeepTogether:
    """Distribute the tests over the workers by `KeepTogether`."""
    return KeepTogether(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow folders first."""
    items.sort(key=lambda item: _rank(item.path))


def _rank(path: Path) -> int:
    folder = path.relative_to(TESTS).parts[0]
    return FIRST.index(folder) if folder in FIRST else len(FIRST)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite database without rows, to copy: migrating takes longer than most tests."""
    path = tmp_path_factory.mktemp("store") / "store.sqlite"
    open_database(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def database(tmp_path: Path, empty_store: Path) -> Iterator[Database]:
    """An empty SQLite database with all tables."""
    opened = open_database(f"sqlite:///{shutil.copy(empty_store, tmp_path)}")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """A sandbox that starts at its first run; tests are skipped where bubblewrap is missing."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: apt-get install bubblewrap")
    made = Sandbox()
    try:
        yield made
    finally:
        made.close()
