"""All processes of a deployment: started, watched until each serves, restarted when one dies, stopped."""

from __future__ import annotations

import asyncio
import fcntl
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import httpx

from triforge.errors import ConflictError, UnavailableError
from triforge.supervisor.layout import Layout
from triforge.supervisor.process import Process, ProcessSpec

_POLL_S = 0.25
ADDRESSES = "addresses.json"
PROCESSES = "processes.json"
LOCK = "up.lock"  # held while a deployment runs in the folder


def demand_free(state: Path) -> None:
    """Raise ConflictError if a deployment runs in the folder; before its ports are found taken."""
    if (state / LOCK).is_file():
        _locked(state).close()


def is_starting(state: Path) -> bool:
    """Whether a deployment has taken the folder and does not serve yet."""
    try:
        demand_free(state)
    except ConflictError:
        return not (state / ADDRESSES).is_file()
    return False


def _locked(state: Path) -> IO[str]:
    lock = (state / LOCK).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        does = "runs" if (state / ADDRESSES).is_file() else "is starting"
        raise ConflictError(
            f"a deployment {does} in {state} already; stop it, or choose another folder with --state"
        ) from None
    return lock


class Supervisor:
    """All processes of one deployment on this machine; `report` gets a sentence for the operator on every change."""

    def __init__(self, layout: Layout, state: Path, *, report: Callable[[str], None]) -> None:
        self.processes = [
            Process(spec, state / "logs" / f"{spec.name}.log") for spec in layout.specs
        ]
        self._settings = layout.settings
        self._state = state
        self._report = report
        self._lock: IO[str] | None = None

    async def start(self) -> None:
        """Start all processes and wait until each serves.

        Raises:
            ConflictError: another deployment runs in this state folder.
            UnavailableError: a process did not come up; the error names it and ends with its last log lines.
        """
        self._state.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self._state)
        (self._state / ADDRESSES).unlink(missing_ok=True)  # of one that was killed
        started = time.monotonic()
        for process in self.processes:
            process.start()
            if process.spec.first:
                await self._until_ready(process)
        for process in self.processes:
            await self._until_ready(process)
        self._write_processes()
        addresses = {
            name: value
            for name, value in self._settings
            if (name.endswith("_url") or name in ("models", "config")) and "@" not in str(value)
        }
        self._write(ADDRESSES, addresses)
        seconds = time.monotonic() - started
        self._report(f"all {len(self.processes)} processes are up after {seconds:.0f} s")

    def _write_processes(self) -> None:
        self._write(PROCESSES, {process.spec.name: process.pid for process in self.processes})

    def _write(self, name: str, document: dict[str, Any]) -> None:
        aside = self._state / f".{name}"
        aside.write_text(json.dumps(document, indent=1))
        aside.replace(self._state / name)

    async def _until_ready(self, process: Process) -> None:
        deadline = time.monotonic() + process.spec.start_s
        if process.spec.start_s > ProcessSpec.start_s:
            self._report(
                f"waiting for {process.spec.name}, which takes minutes (log: {process.log})"
            )
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
            while not await _serves(process.spec, client):
                code, name = process.exit_code(), process.spec.name
                log = f"{process.log} ends with:\n{process.tail()}"
                if code is not None:
                    raise UnavailableError(f"{name} ended with code {code} at its start; {log}")
                if time.monotonic() > deadline:
                    raise UnavailableError(f"{name} does not serve in time; {log}")
                await asyncio.sleep(_POLL_S)

    async def watch(self) -> None:
        """Restart dead processes until cancelled; a restart that the machine refuses (disk full) is tried again."""
        dead: set[str] = set()
        refused: set[str] = set()
        while True:
            for process in self.processes:
                code, name = process.exit_code(), process.spec.name
                if code is not None and name not in dead:
                    dead.add(name)
                    self._report(
                        f"{name} ended with code {code}; restarting it (log: {process.log})"
                    )
                try:
                    if process.revive():
                        dead.discard(name)
                        self._write_processes()
                        refused.clear()
                except OSError as error:
                    if name not in refused:
                        refused.add(name)
                        self._report(f"restarting {name}: {error}; free space or processes")
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Stop all processes, the broker last; without the lock nothing was started."""
        if self._lock is None:
            return
        for last in (False, True):
            processes = [p for p in self.processes if bool(p.spec.tcp_port) == last]
            await asyncio.gather(*(process.stop() for process in processes))
        for name in (ADDRESSES, PROCESSES):
            (self._state / name).unlink(missing_ok=True)
        self._lock.close()
        self._lock = None


async def _serves(spec: ProcessSpec, client: httpx.AsyncClient) -> bool:
    if spec.tcp_port:
        try:
            with socket.create_connection(("127.0.0.1", spec.tcp_port), timeout=1.0):
                return True
        except OSError:
            return False
    if not spec.ready_url:
        return True
    try:
        return (await client.get(spec.ready_url)).status_code == 200
    except httpx.HTTPError:
        return False
