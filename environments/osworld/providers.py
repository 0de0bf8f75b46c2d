"""Where machines come from: containers of the local Docker, fresh for each episode, or addresses that others look after."""

from __future__ import annotations

import logging
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from uuid import uuid4

from environments.osworld.options import Docker, PlayOptions
from triforge.errors import ConfigError, EnvError

_WAIT_S: Final = 3600.0
_DOCKER_S: Final = 300.0
_log = logging.getLogger(__name__)


class _Places:
    """Names that are lent to one episode at a time, by all episodes of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken: set[str] = set()

    def take(self, names: list[str], given_up: Callable[[], bool]) -> str:
        with self._changed:
            self._changed.wait_for(lambda: given_up() or set(names) - self._taken, _WAIT_S)
            free = [name for name in names if name not in self._taken]
            if given_up() or not free:
                raise EnvError(
                    f"osworld: no machine became free; there are {len(names)} for this worker"
                )
            self._taken.add(free[0])
            return free[0]

    def give_back(self, name: str) -> None:
        with self._changed:
            self._taken.discard(name)
            self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


_PLACES: Final = _Places()


class Lease:
    """The use of one machine by one episode."""

    def __init__(self, options: PlayOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._free: Callable[[], None] | None = None
        self._ended = False

    def begin(self) -> str:
        """The address of a machine of one's own; waits while all are in use."""
        docker = self._options.docker
        names = self._options.machines
        if docker is not None:
            names = [f"{docker.image} {number}" for number in range(docker.at_most)]
        place = _PLACES.take(names, lambda: self._ended)
        try:
            url, remove = (place, _keep) if docker is None else _start(docker)
        except BaseException:
            _PLACES.give_back(place)
            raise

        def free() -> None:
            try:
                remove()
            finally:
                _PLACES.give_back(place)

        with self._lock:
            self._free = free
            ended = self._ended
        if ended:
            self.end()
            raise EnvError("osworld: the episode was closed while its machine started")
        return url

    def end(self) -> None:
        """Give the machine back; a container is removed. Idempotent."""
        with self._lock:
            self._ended = True
            free, self._free = self._free, None
        _PLACES.wake()
        if free is not None:
            free()


def _keep() -> None:
    """Leave a machine that somebody else looks after as it is."""


def _start(docker: Docker) -> tuple[str, Callable[[], None]]:
    if shutil.which("docker") is None:
        raise ConfigError(
            "environment 'osworld' is to start containers, but docker is not on PATH: apt-get install docker.io, "
            "or name addresses in env_adapter.options.machines"
        )
    name = f"triforge-osworld-{uuid4().hex[:12]}"  # known before it runs, so that it can be removed whatever happens
    publish = f"127.0.0.1::{docker.port}"
    run = ["docker", "run", "--detach", "--rm", "--name", name, "--publish", publish]

    def remove() -> None:
        with _logged(name):
            _docker(["docker", "rm", "--force", "--volumes", name])

    try:
        _docker([*run, *docker.arguments, docker.image])
        mapped = _docker(["docker", "port", name, f"{docker.port}/tcp"]).split()
        if not mapped:
            raise EnvError(f"osworld: container {name} publishes no port {docker.port}")
    except BaseException:
        remove()
        raise
    return f"http://{mapped[0]}", remove


def _docker(command: list[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 (an argument vector, no shell)
            command, capture_output=True, text=True, timeout=_DOCKER_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvError(f"osworld: {' '.join(command[:2])}: {error}") from error
    if done.returncode != 0:
        raise EnvError(f"osworld: {' '.join(command[:2])} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


@contextmanager
def _logged(container: str) -> Iterator[None]:
    try:
        yield
    except EnvError as error:
        _log.error("container %s may still run: %s", container, error.detail)


__all__ = ["Lease"]
