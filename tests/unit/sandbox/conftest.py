"""Real sandboxes for the tests here; without bubblewrap they are skipped with the package to install."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from triforge.sandbox.client import Sandbox

FOREIGN = {"SANDBOX_TEST_SECRET": "a token of the service"}


@pytest.fixture(scope="package")
def sandbox() -> Iterator[Sandbox]:
    """Make a sandbox whose service has a secret in its environment."""
    yield from _sandbox(groups=True)


@pytest.fixture(scope="package")
def looking() -> Iterator[Sandbox]:
    """Make a sandbox whose runs have no control groups."""
    yield from _sandbox(groups=False)


def _sandbox(*, groups: bool) -> Iterator[Sandbox]:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: apt-get install bubblewrap")
    os.environ.update(FOREIGN)
    made = Sandbox(groups=groups)
    try:
        yield made
    finally:
        made.close()
        for name in FOREIGN:
            os.environ.pop(name, None)
