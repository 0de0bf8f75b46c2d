"""Is an engine's folder that a killed test left behind begun anew, and one that was stopped in order kept?"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from scripts.compose_test.engine import docker_engine
from triforge.errors import UnavailableError


@pytest.fixture
def refusing_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A docker client that knows compose and no engine, and a `dockerd` that ends at once."""
    for name, text in (("docker", 'test "$1" = compose'), ("dockerd", "exit 1")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts an engine")
@pytest.mark.usefixtures("refusing_engine")
@pytest.mark.parametrize("whole", [True, False])
def test_only_what_was_stopped_in_order_is_used_again(tmp_path: Path, *, whole: bool) -> None:
    folder = tmp_path / "engine"
    (folder / "data").mkdir(parents=True)
    if whole:
        (folder / "whole").touch()
    with (
        pytest.raises(UnavailableError, match="dockerd did not start"),
        docker_engine(folder, lambda _: None),
    ):
        pass
    assert (folder / "data").exists() == whole
    assert shutil.which("dockerd") == str(tmp_path / "bin" / "dockerd")
