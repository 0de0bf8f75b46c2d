"""The whole loop as it is shipped, with engines without latency and learners that learn nothing; and what it uses up."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.control_plane_environment import NAME
from bench.machine import cpu_s, rss_mib
from services.trainer.replay.rollouts import ROLES, layout_of, untrained
from triforge.broker import Broker
from triforge.config import Settings
from triforge.supervisor.layout import Layout, free_port
from triforge.supervisor.process import ProcessSpec
from triforge.testing.entry_points import offer_family
from triforge.testing.model_folders import chatml_folder
from triforge.types import TrainedRole

_SAMPLE_S = 0.5


@dataclass
class Stack:
    """A loop that serves.

    Attributes:
        pids: process ids by name; `bench` is our own.
        model: the folder that every version of both models comes from.
    """

    settings: Settings
    pids: dict[str, int]
    model: Path
    engines: Mapping[TrainedRole, str]
    broker: Broker


@contextlib.asynccontextmanager
async def loop(folder: Path) -> AsyncIterator[Stack]:
    """Start everything, wait until it serves, stop it all at the end."""
    model = chatml_folder(folder / "model")
    models = {role: str(model) for role in ROLES}
    engines = {role: f"http://127.0.0.1:{free_port()}" for role in ROLES}
    layout = layout_of(models, folder, engines)
    specs = [_engine(role, url, model) for role, url in engines.items()]
    offer_family(folder / "packages", NAME, "bench.control_plane_environment:FAMILY")
    specs += [_ours(spec, folder / "packages") for spec in layout.specs]
    planned = Layout(settings=layout.settings, specs=tuple(specs))
    async with untrained(planned, folder / "state", models) as (supervisor, broker):
        pids = {process.spec.name: process.pid or 0 for process in supervisor.processes}
        yield Stack(layout.settings, pids | {"bench": os.getpid()}, model, engines, broker)


def _engine(role: str, url: str, model: Path) -> ProcessSpec:
    port = url.rpartition(":")[2]
    command = (sys.executable, "-m", "bench.zero_engine", port, str(model), role)
    return ProcessSpec(name=f"engine-{role}", command=command, env={}, ready_url=f"{url}/ready")


def _ours(spec: ProcessSpec, packages: Path) -> ProcessSpec:
    """Every process finds the bench's environment by its entry point."""
    return dataclasses.replace(spec, env={**spec.env, "PYTHONPATH": str(packages)})


# ---- what processes use up ----


@dataclass
class Meter:
    """Processor time by process between its beginning and `stop`, and resident memory all the while."""

    pids: Mapping[str, int]
    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    memory: list[dict[str, float]] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Meter]:
        before = {name: cpu_s(pid) for name, pid in self.pids.items()}
        started = time.perf_counter()
        sampling = asyncio.create_task(self._sample(started))
        try:
            yield self
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
            self.seconds = time.perf_counter() - started
            self.cpu = {name: cpu_s(pid) - before[name] for name, pid in self.pids.items()}

    async def _sample(self, started: float) -> None:
        while True:
            now = {name: rss_mib(pid) for name, pid in self.pids.items()}
            self.memory.append({"at": time.perf_counter() - started, **now})
            await asyncio.sleep(_SAMPLE_S)

    def peak(self, name: str) -> float:
        """Highest resident memory of a process, MiB."""
        return max(sample[name] for sample in self.memory)

    def report(self, per: int) -> dict[str, Any]:
        """Milliseconds of processor time by process for each of `per` things, and peaks of memory."""
        return {
            "seconds": self.seconds,
            "cpu_ms": {name: used / per * 1e3 for name, used in self.cpu.items()},
            "cpu_ms_all": sum(self.cpu.values()) / per * 1e3,
            "cores": sum(self.cpu.values()) / self.seconds,
            "peak_mib": {name: self.peak(name) for name in self.pids},
        }
