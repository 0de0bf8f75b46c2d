"""A deployment is copied while it trains, lost, restored, and its run goes on to the end of an undisturbed one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import wait_for
from tests.e2e.test_loop import Deploy, _export, _nothing_lost_nothing_twice, _steps, submit

pytestmark = pytest.mark.timeout(300)


def triforge(*arguments: object) -> str:
    command = [sys.executable, "-m", "triforge", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_run_goes_on_from_a_backup_that_was_taken_while_it_trained(
    deploy: Deploy, tmp_path: Path
) -> None:
    deployment = deploy(5)
    run = await submit(deployment.settings())
    await wait_for(deployment.settings(), run.id, step=2)
    assert "wrote" in triforge("backup", tmp_path / "copy", "--state", deployment.state)
    deployment.kill()
    shutil.rmtree(deployment.state)
    assert "restored" in triforge("restore", tmp_path / "copy", "--state", deployment.state)
    deployment.start()
    settings = deployment.settings()
    run = await wait_for(settings, run.id)
    assert (run.status, run.step) == ("finished", 5), run.reason
    rows = await _export(settings, run.id, tmp_path / "run.parquet")
    _nothing_lost_nothing_twice(await _steps(settings, run.id), rows, 5)
