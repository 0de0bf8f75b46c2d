"""A model that reads any text, for all roles, and a server of the OpenEnv protocol."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.one_process.reading_model import build_reading_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def any_text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder for all three roles."""
    return build_reading_model(tmp_path_factory.mktemp("models") / "any-text")


@pytest.fixture(scope="session")
def openenv_server() -> Iterator[str]:
    """The address of an OpenEnv server: one of our own families behind the protocol."""
    command = [sys.executable, "-m", "triforge", "env", "serve", "sokoban", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert " at http://" in line, line
            yield line.rpartition(" at ")[2].strip()
        finally:
            server.terminate()
