"""The parent's side of ALFWorld's engine: processes that play episodes, each episode in one of them.

Variables of the environment:
    ALFWORLD_PYTHON    an interpreter that has alfworld, if ours has not
    ALFWORLD_WORKERS   processes at most; default: the number of CPU cores
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from triforge.environments.worker import Worker
from triforge.errors import ConfigError, EnvError, install_command

MODULE: Final = "environments.alfworld.worker"
INSTALL: Final = (
    f"{install_command('alfworld')}, or name an interpreter that has it in ALFWORLD_PYTHON "
    "(`make test-alfworld` makes one in .venv-alfworld)"
)
_CPU_S: Final = 60.0  # of one call; a large room takes the engine seconds to load


@dataclass(frozen=True, slots=True)
class Seen:
    """The engine's answer to a command."""

    text: str
    commands: tuple[str, ...]
    won: bool


class Game:
    """One episode in the engine; `over` is called once after it. Calls block; any thread may make them."""

    def __init__(self, worker: Worker, reply: dict[str, Any], over: Callable[[], None]) -> None:
        self._worker, self._over = worker, over
        self._episode = reply["episode"]
        self._ended = False
        self.first = _seen(reply)

    def step(self, command: str) -> Seen:
        return _seen(self._worker.call("step", episode=self._episode, command=command))

    def plan(self) -> list[str]:
        """Return commands that win from here, by the engine's planner; empty when it finds none."""
        commands = self._worker.call("plan", episode=self._episode)
        return [command.strip() for command in map(str, commands) if command]

    def end(self) -> None:
        """Give the engine back. Idempotent; ignores a process that is gone."""
        if self._ended:
            return
        self._ended = True
        self._over()
        with suppress(EnvError, ConfigError, OSError):  # its process died, and the episode with it
            self._worker.call("end", episode=self._episode)


class Engine:
    """The processes with the engine; they start when they are first needed and end with ours."""

    def __init__(
        self, *, memo: bool = True, processes: int | None = None, python: str | None = None
    ) -> None:
        settings = {"ALFWORLD_MEMO": "1" if memo else "0"}
        count = max(1, processes or os.cpu_count() or 1)
        self._workers = [
            Worker("alfworld", MODULE, cpu_s=_CPU_S, python=python, settings=settings)
            for _ in range(count)
        ]
        self._load: Counter[int] = Counter(dict.fromkeys(range(count), 0))
        self._lock = threading.Lock()
        self._python = python

    def start(self, **game: Any) -> Game:
        """Begin an episode in the process with the fewest."""
        with self._lock:
            number = min(self._load, key=lambda worker: (self._load[worker], worker))
            self._load[number] += 1
        try:
            reply = self._call(number, "start", **game)
        except BaseException:
            self._free(number)
            raise
        return Game(self._workers[number], reply, partial(self._free, number))

    def sources(self) -> dict[str, str]:
        """Return the installed domain and grammar, as they stand in game files."""
        answer: dict[str, str] = self._call(0, "sources")
        return answer

    def _free(self, number: int) -> None:
        with self._lock:
            self._load[number] -= 1

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _call(self, number: int, op: str, **arguments: Any) -> Any:
        try:
            return self._workers[number].call(op, **arguments)
        except (ConfigError, OSError) as error:
            where = self._python or "this interpreter"
            reason = error.detail if isinstance(error, ConfigError) else str(error)
            raise ConfigError(
                f"alfworld cannot be started with {where} ({reason}): {INSTALL}"
            ) from None


def _seen(reply: dict[str, Any]) -> Seen:
    return Seen(reply["text"], tuple(reply["commands"]), reply["won"])


_LOCK: Final = threading.Lock()
_ENGINES: Final[list[Engine]] = []


def engine() -> Engine:
    """Return the engine of this process."""
    with _LOCK:
        if not _ENGINES:
            workers = os.environ.get("ALFWORLD_WORKERS", "")
            processes = int(workers) if workers.isdecimal() else None
            python = os.environ.get("ALFWORLD_PYTHON") or None
            _ENGINES.append(Engine(processes=processes, python=python))
        return _ENGINES[0]
