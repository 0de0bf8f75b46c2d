"""One deployment that plays the configs of all families, one run after the other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Deployment
from tests.e2e.families.reading_model import build_reading_model
from triforge.config import Settings

ROOT = Path(__file__).parents[3]
DOCUMENT = "".join(
    f'[models.{role}]\npath = "{{model}}"\n\n' for role in ("policy", "reward", "rewriter")
)


@pytest.fixture(scope="session")
def any_text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder for all three roles."""
    pages = [
        *ROOT.glob("services/**/README.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("services/reward/*.py"),
    ]
    texts = [path.read_text(encoding="utf-8") for path in sorted(pages)]
    return build_reading_model(tmp_path_factory.mktemp("models") / "any-text", texts)


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory, any_text_model: Path) -> Iterator[Settings]:
    """The addresses of a deployment that lives as long as the test session."""
    folder = tmp_path_factory.mktemp("families")
    (folder / "run.toml").write_text(DOCUMENT.format(model=any_text_model))
    (folder / "state").mkdir()
    deployment = Deployment(folder / "run.toml", folder / "state")
    try:
        deployment.start()
        yield deployment.settings()
    finally:
        deployment.close()


@pytest.fixture(scope="session")
def openenv_server() -> Iterator[str]:
    """The address of an OpenEnv server: one of our own families behind the protocol."""
    command = [sys.executable, "-m", "triforge", "env", "serve", "sokoban", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            assert " at http://" in said, said
            yield said.rpartition(" at ")[2].strip()
        finally:
            server.terminate()
