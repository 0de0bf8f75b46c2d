"""Two deployments cannot share a state folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.supervisor.test_watch import SLEEPER
from triforge.config import Settings
from triforge.errors import ConflictError
from triforge.supervisor.layout import Layout
from triforge.supervisor.supervise import ADDRESSES, PROCESSES, Supervisor


async def test_second_deployment_in_a_folder_is_refused(tmp_path: Path) -> None:
    layout = Layout(settings=Settings(config="/run.toml"), specs=(SLEEPER,))
    first, second, third = (
        Supervisor(layout, tmp_path, report=lambda _: None) for _ in ("first", "second", "third")
    )
    await first.start()
    try:
        with pytest.raises(ConflictError, match="a deployment runs in"):
            await second.start()
        await second.stop()
        assert json.loads((tmp_path / ADDRESSES).read_text())["config"] == "/run.toml"
        assert (tmp_path / PROCESSES).is_file()
        assert first.processes[0].pid is not None
    finally:
        await first.stop()
    assert not (tmp_path / ADDRESSES).exists()
    await third.start()  # the folder is free again
    await third.stop()
