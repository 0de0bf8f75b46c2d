"""A real engine as a child process: started on a free port, waited for, stopped with all its children."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from scripts.real_sglang.install import HERE, Install
from triforge.errors import UnavailableError
from triforge.supervisor.engines import ENV, SGLANG_CPU
from triforge.supervisor.ports import free_port
from triforge.supervisor.process import Process, ProcessSpec

API_KEY, ADMIN_KEY = "generate-key", "control-key"
START_S = 600.0  # on a busy machine; on two idle cores it takes half a minute

# What the contract needs, on every machine.
_OPTIONS = ("--weight-version", "0", "--grammar-backend", "llguidance")  # fmt: skip
# With a GPU: float32, because the contract compares log-probabilities closely, and room for two servers on one device.
_GPU_OPTIONS = ("--dtype", "float32", "--attention-backend", "triton", "--mem-fraction-static", "0.3", "--skip-server-warmup", "--sleep-on-idle")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Server:
    url: str
    log: Path
    group: int


@contextlib.asynccontextmanager
async def serving(specs: Sequence[ProcessSpec], logs: Path) -> AsyncIterator[list[Server]]:
    """Servers while the block runs, with the keys `API_KEY` and `ADMIN_KEY`.

    Raises:
        UnavailableError: one did not come up; the sentence ends with what it printed.
    """
    processes = [Process(spec, logs / f"{spec.name}.log") for spec in specs]
    try:
        for process in processes:
            process.log.unlink(missing_ok=True)
            process.start()
        for process in processes:
            await until_ready(process)
        yield [
            Server(url=_url(process.spec), log=process.log, group=process.pid or 0)
            for process in processes
        ]
    finally:
        await asyncio.gather(*(process.stop() for process in processes))


def spec(install: Install, model: Path, name: str) -> ProcessSpec:
    """Return the process of a SGLang server."""
    port = str(free_port())
    start = ("-m", "sglang.launch_server") if install.gpu else (str(HERE / "launch_cpu.py"),)
    options = (
        "--model-path", str(model), "--served-model-name", name, "--host", "127.0.0.1", "--port", port,
        "--api-key", API_KEY, "--admin-api-key", ADMIN_KEY, *_OPTIONS, *(_GPU_OPTIONS if install.gpu else SGLANG_CPU),
    )  # fmt: skip
    return ProcessSpec(
        name=f"sglang-{name}",
        command=(str(install.python), *start, *options),
        env=ENV,
        ready_url=f"http://127.0.0.1:{port}/ready",
    )


def _url(spec: ProcessSpec) -> str:
    return spec.ready_url.rpartition("/")[0]


async def until_ready(process: Process) -> None:
    """Wait until it serves. Raises UnavailableError when it has died or takes too long."""
    deadline = time.monotonic() + START_S
    async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get(process.spec.ready_url)).status_code == 200:
                    return
            if process.exit_code() is not None or time.monotonic() > deadline:
                raise UnavailableError(
                    f"{process.spec.name} does not serve; {process.log} ends with:\n{process.tail(30)}"
                )
            await asyncio.sleep(0.5)
