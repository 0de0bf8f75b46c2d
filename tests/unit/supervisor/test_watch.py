"""The supervisor goes on when the machine refuses it something."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from triforge.config import Settings
from triforge.supervisor.layout import Layout
from triforge.supervisor.process import ProcessSpec
from triforge.supervisor.supervise import PROCESSES, Supervisor

SLEEPER = ProcessSpec(
    name="sleeper", command=(sys.executable, "-c", "import time; time.sleep(60)"), env={}
)


async def test_restart_without_a_writable_state_file(tmp_path: Path) -> None:
    refused = asyncio.Event()

    def tell(sentence: str) -> None:
        if sentence.startswith("restarting sleeper:"):
            refused.set()

    supervisor = Supervisor(Layout(settings=Settings(), specs=(SLEEPER,)), tmp_path, report=tell)
    await supervisor.start()
    watching = asyncio.create_task(supervisor.watch())
    try:
        (tmp_path / f".{PROCESSES}").mkdir()  # writing there fails, as on a full disk
        first = supervisor.processes[0].pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(20):
            await refused.wait()
        assert not watching.done()
        assert supervisor.processes[0].pid not in (None, first)
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        await supervisor.stop()
