"""Real child processes: started in order, waited for, restarted when they die, stopped with all that is theirs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from triforge.broker import RedisBroker
from triforge.config import Settings
from triforge.errors import UnavailableError
from triforge.event_loop import end_task
from triforge.supervisor.layout import Layout, server_command
from triforge.supervisor.ports import free_port
from triforge.supervisor.process import Process, ProcessSpec
from triforge.supervisor.supervise import PROCESSES, Supervisor

SLEEPS = "import time; time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
SERVES = """
import http.server, sys, time
from pathlib import Path

class Api(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        warm = Path(sys.argv[2]).exists()
        self.send_response(200 if warm else 503)
        self.end_headers()
        print("served" if warm else "turned away", flush=True)

    def log_message(self, *_):
        pass

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Api).serve_forever()
"""
SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from triforge.config import Settings
from triforge.supervisor.layout import Layout
from triforge.supervisor.process import ProcessSpec
from triforge.supervisor.supervise import Supervisor

specs = tuple(
    ProcessSpec(name=f"child-{n}", command=(sys.executable, "-c", "import time; time.sleep(600)"), env={})
    for n in range(2)
)

async def main():
    supervisor = Supervisor(Layout(settings=Settings(), specs=specs), Path(sys.argv[1]), report=print)
    await supervisor.start()
    print(*(process.pid for process in supervisor.processes), flush=True)
    await supervisor.watch()

asyncio.run(main())
"""


def python(name: str, code: str, *arguments: str, **fields: object) -> ProcessSpec:
    command = (sys.executable, "-c", code, *arguments)
    return ProcessSpec(name=name, command=command, env={}, **fields)  # type: ignore[arg-type]


class Deployment:
    """A supervisor of some specs, and what it reported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: list[str] = []
        self.supervisor = self._of()
        self._watching: asyncio.Task[None] | None = None

    def _of(self, *specs: ProcessSpec) -> Supervisor:
        layout = Layout(settings=Settings(), specs=specs)
        return Supervisor(layout, self.folder, report=self.reports.append)

    async def start(self, *specs: ProcessSpec) -> None:
        self.supervisor = self._of(*specs)
        await self.supervisor.start()

    def watch(self) -> None:
        self._watching = asyncio.create_task(self.supervisor.watch())

    async def stop(self) -> None:
        if self._watching is not None:
            await end_task(self._watching)
        await self.supervisor.stop()

    def process(self, name: str) -> Process:
        [found] = [p for p in self.supervisor.processes if p.spec.name == name]
        return found

    def log(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text()


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    made = Deployment(tmp_path)
    yield made
    await made.stop()


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another process brings about."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether a process runs; one that only waits to be buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_it_waits_until_every_api_serves(deployment: Deployment, tmp_path: Path) -> None:
    port, warm = free_port(), tmp_path / "warm"
    api = python("api", SERVES, str(port), str(warm), ready_url=f"http://127.0.0.1:{port}/")
    starting = asyncio.create_task(deployment.start(python("other", SLEEPS), api))
    await until(lambda: deployment.process("api").pid if deployment.supervisor.processes else None)
    await until(lambda: deployment.log("api").count("turned away") > 1)  # its 503 is no answer
    assert not starting.done()
    warm.touch()
    await asyncio.wait_for(starting, 20)
    assert deployment.reports[-1].startswith("all 2 processes are up after ")


async def test_the_broker_serves_before_anything_else_starts(
    deployment: Deployment, tmp_path: Path
) -> None:
    port = free_port()
    broker = ProcessSpec(
        name="valkey", command=tuple(server_command(port, tmp_path / "valkey")), env={}, tcp_port=port, first=True,
        folder=tmp_path / "valkey",
    )  # fmt: skip
    asks = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print('met')"
    await deployment.start(broker, python("asks", asks, str(port)))
    broker = RedisBroker(f"redis://127.0.0.1:{port}/0")
    await broker.ping()
    await broker.close()
    await until(lambda: deployment.process("asks").exit_code() is not None)
    assert (deployment.process("asks").exit_code(), deployment.log("asks")) == (0, "met\n")


async def test_a_process_that_ends_at_its_start_is_named_with_its_last_words(
    deployment: Deployment,
) -> None:
    says = "print('line 1'); print('no weights here'); raise SystemExit(3)"
    api = python("api", says, ready_url=f"http://127.0.0.1:{free_port()}/")
    with pytest.raises(UnavailableError) as caught:
        await deployment.start(python("other", SLEEPS), api)
    assert caught.value.detail.startswith("api ended with code 3 at its start; ")
    assert caught.value.detail.endswith("no weights here")
    other = deployment.process("other").pid
    assert other is not None
    await deployment.stop()
    assert not lives(other), "what came up before it is stopped as well"


async def test_a_process_that_never_serves_is_named_after_the_deadline(
    deployment: Deployment,
) -> None:
    mute = python("mute", SLEEPS, ready_url=f"http://127.0.0.1:{free_port()}/", start_s=0.2)
    with pytest.raises(UnavailableError, match="mute does not serve in time"):
        await deployment.start(mute)


async def test_what_dies_is_restarted_and_the_others_are_left_alone(deployment: Deployment) -> None:
    await deployment.start(python("victim", SLEEPS), python("other", SLEEPS))
    victim, other = deployment.process("victim"), deployment.process("other")
    first, bystander = victim.pid, other.pid
    assert first is not None
    deployment.watch()
    os.kill(first, signal.SIGKILL)
    await until(lambda: victim.pid not in (None, first))
    assert (victim.restarts, other.restarts, other.pid) == (1, 0, bystander)
    await until(lambda: f'"victim": {victim.pid}' in (deployment.folder / PROCESSES).read_text())
    assert [t for t in deployment.reports if "victim" in t] == [
        f"victim ended with code -9; restarting it (log: {victim.log})"
    ]


async def test_children_of_what_died_are_gone_before_it_starts_again(
    deployment: Deployment,
) -> None:
    await deployment.start(python("parent", PARENT))
    parent = deployment.process("parent")
    await until(lambda: deployment.log("parent").endswith("\n"))
    first, grandchild = parent.pid, int(deployment.log("parent"))
    assert first is not None
    deployment.watch()
    os.kill(first, signal.SIGKILL)
    await until(lambda: parent.pid not in (None, first))
    await until(lambda: not lives(grandchild))


async def test_what_dies_at_its_start_is_restarted_ever_more_slowly(tmp_path: Path) -> None:
    now = 0.0
    process = Process(python("doomed", "raise SystemExit(1)"), tmp_path / "log", clock=lambda: now)
    process.start()
    pauses = []
    for _ in range(7):
        await until(lambda: process.exit_code() is not None)
        died_at = now
        while not process.revive():
            now += 0.25
        pauses.append(now - died_at)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    await until(lambda: process.exit_code() is not None)
    now += 3600.0  # this time it lived for an hour
    assert not process.revive()
    now += 0.5
    assert process.revive()
    await process.stop()


async def test_stopping_ends_everything_and_grandchildren_too(deployment: Deployment) -> None:
    await deployment.start(python("parent", PARENT), python("other", SLEEPS))
    await until(lambda: deployment.log("parent").endswith("\n"))
    grandchild = int(deployment.log("parent"))
    pids = [deployment.process(name).pid for name in ("parent", "other")]
    assert all(pid is not None and lives(pid) for pid in (*pids, grandchild))
    await deployment.stop()
    assert not any(pid is not None and lives(pid) for pid in pids)
    await until(lambda: not lives(grandchild))  # killed, and reaped by another process
    assert not (deployment.folder / PROCESSES).exists()


async def test_who_does_not_hear_is_killed_after_the_grace(tmp_path: Path) -> None:
    process = Process(python("deaf", STUBBORN), tmp_path / "log")
    process.start()
    await until(lambda: process.tail())
    pid = process.pid
    assert pid is not None
    await process.stop(grace_s=0.2)
    assert not lives(pid)
    await process.stop()  # stopping twice is the same as once


async def test_no_child_outlives_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SUPERVISOR, str(tmp_path), stdout=subprocess.PIPE
    )
    try:
        assert supervisor.stdout is not None
        assert (await supervisor.stdout.readline()).startswith(b"all 2 processes are up")
        pids = [int(pid) for pid in (await supervisor.stdout.readline()).split()]
        assert len(pids) == 2
        assert all(map(lives, pids))
    finally:
        supervisor.kill()
        await supervisor.wait()
    await until(lambda: not any(map(lives, pids)))
