"""Two deployments cannot share a state folder."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.supervisor.test_watch import SLEEPER
from triforge.config import Settings
from triforge.errors import ConflictError
from triforge.supervisor.layout import Layout
from triforge.supervisor.supervise import ADDRESSES, PROCESSES, Supervisor, is_starting


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


async def test_addresses_of_a_killed_deployment_are_not_those_of_one_that_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / ADDRESSES).write_text("{}")
    started = replace(SLEEPER, name="engine", ready_url="http://127.0.0.1:1")
    layout = Layout(settings=Settings(), specs=(started,))
    supervisor = Supervisor(layout, tmp_path, report=lambda _: None)
    assert not is_starting(tmp_path)
    starting = asyncio.create_task(supervisor.start())
    await asyncio.sleep(0)
    try:
        assert is_starting(tmp_path)
    finally:
        starting.cancel()
        await supervisor.stop()
    assert not is_starting(tmp_path)
