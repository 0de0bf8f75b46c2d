"""Processes that begin with torch and the learner loaded: forks of a server that imported them once a session.

A fork runs a module as `python -m MODULE ARGUMENTS` does. Loading the learner takes four seconds of a core; a fork takes none.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["services.trainer.learner.process"])
_POLL_S: Final = 0.02


class WarmProcess:
    """A module that runs in a forked process; killed at the end of a `with` block, if it still runs.

    Args:
        module: what to run, as after `python -m`.
        arguments: its command line.
        env: environment variables that are set on top of this process's own.
        log: the file that gets its output and errors.
    """

    def __init__(self, module: str, *arguments: str, env: Mapping[str, str], log: Path) -> None:
        self._log = log
        whole = {**os.environ, **env}
        self._process = _CONTEXT.Process(target=_run, args=(module, arguments, whole, str(log)))
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)
        self.wait(30)
        self._process.close()

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._process.exitcode

    @property
    def output(self) -> str:
        """The text that the process has written so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self._process.pid
        os.kill(self._process.pid, number)

    def wait(self, timeout_s: float) -> int:
        """Wait for the end, and return the exit code; TimeoutError if it does not come."""
        self._process.join(timeout_s)
        code = self.returncode
        if code is None:
            raise TimeoutError(self.output)
        return code

    async def ended(self, timeout_s: float) -> int:
        """Wait for the end without blocking the event loop."""
        async with asyncio.timeout(timeout_s):
            while self.returncode is None:  # noqa: ASYNC110 (a sentinel in another process)
                await asyncio.sleep(_POLL_S)
        return self.wait(0)


def _run(module: str, arguments: tuple[str, ...], env: dict[str, str], log: str) -> None:
    """Run the module in the forked process."""
    import torch

    with Path(log).open("ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.environ.clear()
    os.environ.update(env)
    torch.set_num_threads(int(env.get("OMP_NUM_THREADS", "1")))  # the server read another value
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
