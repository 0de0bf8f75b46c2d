"""The whole loop as it is shipped, with engines without latency and learners that learn nothing; and what it uses up."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.control_plane_environment import NAME
from bench.machine import cpu_s
from triforge.broker import Broker, RedisBroker, batches_stream
from triforge.config import Settings, parse, write_document
from triforge.supervisor.layout import Layout, plan_layout
from triforge.supervisor.ports import free_port
from triforge.supervisor.process import ProcessSpec
from triforge.supervisor.supervise import Supervisor
from triforge.testing.fakes import offer_family
from triforge.testing.model_folders import chatml_folder
from triforge.types import TrainedRole, WeightsReady

ROLES: Final[tuple[TrainedRole, ...]] = ("policy", "reward")
_LEFT_OUT: Final = ("learner-policy", "learner-reward", "reward", "dashboard")


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


def layout_of(
    models: Mapping[TrainedRole, str], folder: Path, engines: Mapping[TrainedRole, str]
) -> Layout:
    """Return the layout of a deployment of these model folders with these engines, which show no weights."""
    document = {
        "models": {role: {"path": path} for role, path in models.items()},
        "adaptation": {"controller": "none"},
    }
    write_document(folder / "run.toml", document)
    given = {f"{role}_engines": url for role, url in engines.items()}
    unchecked = {"weights_check": "sizes", "weights_verify": "info"}
    return plan_layout(
        parse(document), Settings().model_copy(update=given | unchecked), config_path=folder / "run.toml",
        state=folder / "state", auto_ports=True, environ={},
    )  # fmt: skip


@contextlib.asynccontextmanager
async def untrained(
    layout: Layout, state: Path, models: Mapping[TrainedRole, str]
) -> AsyncIterator[tuple[Supervisor, Broker]]:
    """Start its processes; tasks of this process stand in for learners and announce the same folder under each next version."""
    specs = tuple(spec for spec in layout.specs if spec.name not in _LEFT_OUT)
    supervisor = Supervisor(replace(layout, specs=specs), state, report=lambda _: None)
    broker = RedisBroker(layout.settings.redis_url, lease_s=layout.settings.lease_s)
    learners: list[asyncio.Task[None]] = []
    try:
        await supervisor.start()
        learners += [asyncio.create_task(_announce(broker, *model)) for model in models.items()]
        yield supervisor, broker
    finally:
        for task in learners:
            task.cancel()
        await asyncio.gather(*learners, return_exceptions=True)
        await broker.close()
        await supervisor.stop()


async def _announce(broker: Broker, role: TrainedRole, folder: str) -> None:
    cursor = await broker.last_id(batches_stream(role))
    while True:
        for entry, batch, _ in await broker.read_batches(role, cursor):
            cursor = entry
            if batch is not None:
                ready = WeightsReady(
                    run_id=batch.run_id, role=role, step=batch.step, version=batch.version + 1, uri=folder, digest="",
                )  # fmt: skip
                await broker.announce(ready)


# ---- what processes use up ----


class Meter:
    """Processor time by process while `running`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._cpu: dict[str, float] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        before = {name: cpu_s(pid) for name, pid in self._pids.items()}
        yield
        self._cpu = {name: cpu_s(pid) - before[name] for name, pid in self._pids.items()}

    def report(self, per: int) -> dict[str, Any]:
        """Return milliseconds of processor time by process for each of `per` things."""
        by_process = {name: used / per * 1e3 for name, used in self._cpu.items()}
        return {"cpu_ms": by_process, "cpu_ms_all": sum(by_process.values())}
