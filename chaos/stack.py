"""A whole deployment to be hurt: the processes of `triforge up`, two workers of each kind, engines behind proxies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from chaos.proxy import Proxy
from chaos.tiny_run import tiny_run, tiny_words
from chaos.volume import SmallDisk
from chaos.waiting import until
from environments.household.catalogue import GOAL_TYPES
from environments.household.wording import vocabulary
from triforge.config import Settings, load
from triforge.errors import UnavailableError
from triforge.supervisor.layout import Layout, plan_layout
from triforge.supervisor.ports import free_port
from triforge.supervisor.process import Process, ProcessSpec
from triforge.supervisor.supervise import Supervisor

_DISK_MB = 256
_STATE_MB = 512
_DELAYS = {"policy": 0.2, "reward": 0.2, "rewriter": 0.5}  # seconds before an engine's answer
TWICE = ("rollout-worker", "judge-worker", "adapt-worker")


class Stack:
    """The deployment. One at a time a folder; what was in the folder before is gone.

    Attributes:
        proxies: one before each engine, by role.
        disk: what the artifacts lie on.
        state_disk: what everything else lies on: the database, Valkey's append-only file, logs.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.folder = folder.resolve()
        self._tell = tell
        self.settings = Settings()
        self.proxies: dict[str, Proxy] = {}
        self.state_disk = SmallDisk(self.folder / "state", _STATE_MB)
        self.disk = SmallDisk(self.folder / "state" / "artifacts", _DISK_MB)
        self._supervisor: Supervisor | None = None
        self._watching: asyncio.Task[None] | None = None
        self._frozen: set[int] = set()

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def config(self) -> Path:
        return self.folder / "run.toml"

    @property
    def artifacts(self) -> Path:
        return self.disk.folder

    async def start(self) -> None:
        """Start everything and wait until it serves.

        Raises:
            UnavailableError: something did not come up.
        """
        self._unmount()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.state_disk.mount()
        self.disk.mount()
        config = self._write_config(await asyncio.to_thread(self._make_model))
        layout = plan_layout(
            load(config), Settings(), config_path=config, state=self.state, auto_ports=True, environ={}
        )  # fmt: skip
        layout = await self._behind_proxies(layout)
        self.settings = layout.settings
        twins = [replace(s, name=f"{s.name}-2") for s in layout.specs if s.name in TWICE]
        layout = replace(layout, specs=(*layout.specs, *twins))
        self._supervisor = Supervisor(layout, self.state, report=self._tell)
        await self._supervisor.start()
        self._watching = asyncio.create_task(self._supervisor.watch())

    def _make_model(self) -> Path:
        values = [*vocabulary(), *GOAL_TYPES]
        listed, model = self.folder / "words.txt", self.folder / "model"
        listed.write_text(" ".join(tiny_words(values)))
        command = [sys.executable, "-m", "demo.models", "tiny-model", "--seed", "3"]
        done = subprocess.run(  # noqa: S603 (our own module)
            [*command, "--words", str(listed), "--out", str(model)], capture_output=True, check=False
        )  # fmt: skip
        if done.returncode:
            raise UnavailableError(f"no tiny model: {done.stderr.decode(errors='replace')[-500:]}")
        return model

    def _write_config(self, model: Path) -> Path:
        self.config.write_text(
            tiny_run(model, steps=3, eval_tasks=2, updates=4, step_deadline_s=240)
        )
        return self.config

    async def _behind_proxies(self, layout: Layout) -> Layout:
        specs = []
        for spec in layout.specs:
            if spec.name.endswith("-model"):
                role = spec.name.removesuffix("-model")
                port = urlsplit(spec.env["TRIFORGE_ENGINES"]).port
                proxy = self.proxies[role] = Proxy(port or 0, delay_s=_DELAYS[role])
                await proxy.start()
                env = {**spec.env, "TRIFORGE_ENGINES": f"http://127.0.0.1:{proxy.port}"}
                specs.append(replace(spec, env=env))
            else:
                specs.append(spec)
        return replace(layout, specs=tuple(specs))

    async def stop(self) -> None:
        """Stop everything that was started; nothing is left running."""
        for pid in list(self._frozen):
            self._signal(pid, signal.SIGCONT)
        try:
            if self._watching is not None:
                self._watching.cancel()
                await asyncio.wait({self._watching})
            if self._supervisor is not None:
                await self._supervisor.stop()
            for proxy in self.proxies.values():
                await proxy.stop()
        finally:
            with contextlib.suppress(OSError):  # it is only for people to look at
                self._keep()
            self._unmount()

    def _keep(self) -> None:
        """Leave what people look at afterwards where it outlasts the disk: the logs and the database."""
        logs, kept = self.state / "logs", self.folder / "kept"
        if not self.state_disk.bounded or not logs.is_dir():
            return
        shutil.copytree(logs, kept / "logs", dirs_exist_ok=True)
        for path in self.state.glob("triforge.sqlite*"):
            shutil.copy(path, kept)

    def _unmount(self) -> None:
        self.disk.unmount()
        self.state_disk.unmount()

    # ---- its processes ----

    def process(self, name: str) -> Process:
        assert self._supervisor is not None
        return next(p for p in self._supervisor.processes if p.spec.name == name)

    def names(self) -> list[str]:
        """All processes, the broker first."""
        assert self._supervisor is not None
        return [p.spec.name for p in self._supervisor.processes]

    def restarts(self, *names: str) -> int:
        """How often the supervisor had to start these again."""
        return sum(self.process(name).restarts for name in names)

    def kill(self, *names: str) -> None:
        """SIGKILL at the same moment; the supervisor starts them again."""
        for pid in [self.process(name).pid for name in names]:
            if pid is not None:
                self._signal(pid, signal.SIGKILL)

    def freeze(self, name: str) -> None:
        """SIGSTOP: it holds what it holds, and does nothing."""
        pid = self.process(name).pid
        if pid is not None:
            self._frozen.add(pid)
            self._signal(pid, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        pid = self.process(name).pid
        if pid is not None:
            self._frozen.discard(pid)
            self._signal(pid, signal.SIGCONT)

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    async def exchange(self, name: str, env: Mapping[str, str]) -> None:
        """Have a process run with other variables from now on."""
        process = self.process(name)
        process.spec = replace(process.spec, env={**process.spec.env, **env})
        before = process.restarts
        self.kill(name)
        await until(lambda: process.restarts > before and process.pid is not None, within_s=60)

    def second(self, name: str) -> Process:
        """Start one more process of a kind on the same stores; the caller stops it.

        A second trainer's API has a port of its own; nothing else is different.
        """
        spec = self.process(name).spec
        api = {"TRIFORGE_TRAINER_URL": f"http://127.0.0.1:{free_port()}"} if name == "trainer" else {}  # fmt: skip
        twin = ProcessSpec(name=f"{name}-2", command=spec.command, env={**spec.env, **api})
        process = Process(twin, self.state / "logs" / f"{name}-2.log")
        process.start()
        return process
