"""A Docker engine to test on: the one that runs, or one of our own in a folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.calling import Tell, attempt, call
from triforge.errors import UnavailableError

_START_S = 60.0
_WHOLE = "whole"  # in the folder of an engine that was stopped in order
_PLUGIN = (
    "docker compose (version 2): the package docker-compose of Debian 13 or newer, docker-compose-plugin of Docker's own "
    "packages, or the plugin's file in ~/.docker/cli-plugins"
)


class Docker:
    """The docker client, with the environment that finds the engine.

    Args:
        host: address of the engine; empty takes the client's default.
    """

    def __init__(self, host: str) -> None:
        self.environment = {**os.environ, **({"DOCKER_HOST": host} if host else {})}
        self.environment["DOCKER_BUILDKIT"] = "0"  # the plain builder: nothing here may need more

    def __call__(self, *words: str, stdin: str = "", timeout_s: float = 120.0) -> str:
        """Run `docker WORDS`; returns what it printed.

        Raises:
            UnavailableError: it failed.
        """
        return call(
            ["docker", *words], environment=self.environment, stdin=stdin, timeout_s=timeout_s
        )

    def has(self, image: str) -> bool:
        """Whether the engine has an image of this name."""
        return not attempt(
            ["docker", "image", "inspect", image], environment=self.environment
        ).returncode


@contextlib.contextmanager
def docker_engine(folder: Path, tell: Tell) -> Iterator[Docker]:
    """Yield the engine that answers; if none does, one of our own with everything it keeps in `folder`, stopped at the end.

    Raises:
        UnavailableError: something is not installed; nothing is installed by this.
    """
    if shutil.which("docker") is None:
        raise UnavailableError(
            "docker: not installed. As root: apt-get install -y --no-install-recommends docker.io debootstrap"
        )
    found = Docker("")
    if not attempt(["docker", "info"], environment=found.environment).returncode:
        tell("using the Docker engine that runs here")
        yield found
        return
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        raise UnavailableError(
            "no Docker engine answers here. Start one, or, as root, let this start its own: "
            "apt-get install -y --no-install-recommends docker.io debootstrap"
        )
    address = f"unix://{folder / 'docker.sock'}"
    with _own_engine(folder, address, tell):
        yield Docker(address)


def demand_plugin() -> None:
    """UnavailableError without compose."""
    if attempt(["docker", "compose", "version"]).returncode:
        raise UnavailableError(f"not installed: {_PLUGIN}")


@contextlib.contextmanager
def _own_engine(folder: Path, address: str, tell: Tell) -> Iterator[None]:
    """`dockerd` in the folder. Its limits of open files are those that a container may have itself."""
    whole = folder / _WHOLE
    if not whole.exists():  # of a test that was killed, perhaps while it deleted this
        remove(folder)
    whole.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "dockerd.log"
    command = ["dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"), "-p", str(folder / "pid")]  # fmt: skip
    command += ["-H", address, "--default-ulimit", "nofile=20000:20000"]
    tell(f"starting a Docker engine in {folder} (log: {log})")
    with log.open("ab") as out:
        engine = subprocess.Popen(  # noqa: S603 (no shell; the words are ours)
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        _await(engine, Docker(address), log)
        yield
    finally:
        engine.send_signal(signal.SIGTERM)
        try:
            if engine.wait(60) == 0:
                whole.touch()
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()
        tell("the Docker engine was stopped")


def remove(folder: Path) -> None:
    """Delete what an engine of our own has kept, and what it has left mounted there."""
    (folder / _WHOLE).unlink(missing_ok=True)
    mounted = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed(mounted):
        if place.is_relative_to(folder):
            attempt(["umount", "--lazy", str(place)])
    shutil.rmtree(folder, ignore_errors=True)


def _await(engine: subprocess.Popen[bytes], docker: Docker, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while attempt(["docker", "info"], environment=docker.environment).returncode:
        if engine.poll() is not None or time.monotonic() > deadline:
            last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise UnavailableError(f"dockerd did not start; its last words:\n{last}")
        time.sleep(0.5)
