"""What holds for every test: hypothesis draws the same examples each time, and xdist keeps related tests together."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("triforge", deadline=None, derandomize=True)
settings.load_profile("triforge")

TESTS = Path(__file__).parent
FIRST = (
    "e2e",
    "service",
)  # the slow folders start first, so that no worker waits for them alone at the end


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all of tests/e2e one xdist worker, every other file its own, and run the slow folders first."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        group = "e2e" if folder == "e2e" else str(item.path.relative_to(TESTS))
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: _rank(item.path))


def _rank(path: Path) -> int:
    folder = path.relative_to(TESTS).parts[0]
    return FIRST.index(folder) if folder in FIRST else len(FIRST)
