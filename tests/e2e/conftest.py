"""Whole deployments: every service a process, a real Valkey, tiny models with random weights in all three roles."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from pydantic import SecretStr

from chaos.tiny_run import tiny_run, tiny_words
from demo.models.tiny_models import build_tiny_model
from environments.household.catalogue import GOAL_TYPES
from environments.household.wording import vocabulary
from triforge.access.keys import KeyStore
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.config import Settings
from triforge.store.database import Database
from triforge.types import GenerateSpec, PoolRequest, RunState

_START_S = 120.0


class Deployment:
    """`triforge up` as a child process.

    Args:
        config: TOML document.
        state: folder of the deployment; a second deployment on it goes on where the first one ended.
        keyed: whether its APIs ask for keys; `settings` then holds an operator's.
    """

    def __init__(self, config: Path, state: Path, *, keyed: bool = False) -> None:
        self._config = config
        self.state = state
        self._keyed, self._key = keyed, ""
        self._child: subprocess.Popen[bytes] | None = None

    @classmethod
    def made(cls, folder: Path, model: Path, *, keyed: bool = False) -> Deployment:
        """One with that model in all three roles, in an empty folder."""
        (folder / "run.toml").write_text(tiny_run(model, steps=1, eval_tasks=4, updates=2))
        (folder / "state").mkdir()
        return cls(folder / "run.toml", folder / "state", keyed=keyed)

    def start(self) -> None:
        (self.state / "addresses.json").unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "triforge",
            "up",
            "-c",
            str(self._config),
            "--state",
            str(self.state),
        ]
        with (self.state.parent / "up.log").open("ab") as out:
            self._child = subprocess.Popen(
                [*command, "--auto-ports"],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **({"TRIFORGE_AUTH": "keys"} if self._keyed else {})},
            )
        deadline = time.monotonic() + _START_S
        while not (self.state / "addresses.json").is_file():
            if self._child.poll() is not None or time.monotonic() > deadline:
                pytest.fail((self.state.parent / "up.log").read_text()[-4000:])
            time.sleep(0.1)

    def stop(self) -> int:
        """SIGTERM, as Ctrl-C would; returns the exit code."""
        assert self._child
        self._child.send_signal(signal.SIGTERM)
        return self._child.wait(60)

    def kill(self) -> None:
        """SIGKILL everything at once, the supervisor first."""
        pids = self.pids()
        assert self._child
        self._child.kill()
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._child.wait(30)

    def close(self) -> None:
        if self._child and self._child.poll() is None:
            self.stop()

    def pids(self) -> dict[str, int]:
        return json.loads((self.state / "processes.json").read_text())

    def settings(self) -> Settings:
        written = json.loads((self.state / "addresses.json").read_text())
        settings = Settings().model_copy(update=written)
        if not self._keyed:
            return settings
        self._key = self._key or self.new_key("admin", "operator")
        return settings.model_copy(update={"auth": "keys", "service_secret": SecretStr(self._key)})

    def new_key(self, scope: str, tenant: str) -> str:
        written = json.loads((self.state / "addresses.json").read_text())
        store = KeyStore(Database(written["database_url"]))
        return store.create("e2e", scope=scope, tenant=tenant)[1]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    values = [*vocabulary(), *GOAL_TYPES]
    build_tiny_model(folder, tiny_words(values), seed=3)
    return folder


async def submit(
    settings: Settings, *, tasks: int = 12, policy: dict[str, object] | None = None, **run: object
) -> RunState:
    """A pool of easy tasks and a run on it; `run` are fields of its section `run`, `policy` of `trainer.policy`."""
    pools = EnvAdapterClient(settings.env_adapter_url, api_key=settings.own_key)
    trainer = TrainerClient(settings.trainer_url, api_key=settings.own_key)
    try:
        made = await pools.create_pool(
            PoolRequest(
                name=f"e2e-{uuid.uuid4().hex}", environment="household", options={"wording": "terse"},
                generate=GenerateSpec(count=tasks, heldout=4, seed=5),
            )
        )  # fmt: skip
        config = {"run": run, "trainer": {"policy": policy or {}}}
        return await trainer.submit(made.id, name="e2e", config=config)
    finally:
        await pools.close()
        await trainer.close()


async def wait_for(
    settings: Settings, run_id: str, *, step: int | None = None, within_s: float = 150.0
) -> RunState:
    """The run once it has finished that step, or ended."""
    client = TrainerClient(settings.trainer_url, api_key=settings.own_key)
    try:
        async with asyncio.timeout(within_s):
            while True:
                run = await client.run(run_id)
                if run.status in ("finished", "failed", "stopped") or (
                    step is not None and run.step >= step
                ):
                    return run
                await asyncio.sleep(0.1)
    finally:
        await client.close()
