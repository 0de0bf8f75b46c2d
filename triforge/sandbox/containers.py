"""Containers behind the contract of `Sandbox.run_blocking`, for programs that need an image of their own.

Each run has a container to itself, which ends with it. Containers are started ahead and read their program from standard input: one
whose service is gone reads the end instead, and ends, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import IO, Final

from triforge.errors import InputError, SandboxError
from triforge.sandbox.limits import Ended, Limits, RunResult

Run = Callable[[str, str, Limits], RunResult]
"""`Sandbox.run_blocking`, or the same in containers of an image."""

_DEFAULT: Final = Limits()
_ASK_S: Final = 60.0
_ERRORS: Final = 65_536  # bytes of standard error that are kept
_NOT_BEGUN, _NO_PROGRAM = 125, (126, 127)  # statuses of `docker run`
_BOOT: Final = (
    "import os; n, s = int(os.read(0, 8)), b''\n"
    "while len(s) < n and (p := os.read(0, n - len(s))): s += p\n"
    "exec(compile(s, 'program.py', 'exec'))"
)
_RIGHTS: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")


@dataclass(frozen=True, slots=True)
class Image:
    """An image and what it says of itself."""

    name: str
    env: dict[str, str]
    workdir: str


class Containers:
    """Runs programs in containers of one Docker engine, several at a time.

    Args:
        engine: its address, such as `unix:///var/run/docker.sock`.
        network: of builds; a container that runs a program has none.
        waiting: containers of all images together that are started ahead.
    """

    def __init__(self, engine: str, *, network: str = "none", waiting: int = 4) -> None:
        self._docker, self._network, self._most = ["docker", "-H", engine], network, waiting
        self._turns = threading.BoundedSemaphore(os.cpu_count() or 1)
        self._lock, self._building = threading.Lock(), threading.Lock()
        self._waiting: list[_Container] = []  # oldest first

    def built(self, context: bytes, seconds: float) -> Image:
        """The image of a build context (tar), built where the engine has none of the same; an `InputError` where that fails."""
        name = f"triforge-task:{hashlib.sha256(context).hexdigest()[:32]}"
        with self._building:
            if self._asked("image", "inspect", name).returncode:
                words = ("build", "-q", "--network", self._network, "-t", name, "-")
                made = self._asked(*words, given=context, seconds=seconds)
                if made.returncode:
                    raise InputError(f"the image is not built: {_last(made.stderr)}")
        return self.image(name)

    def image(self, name: str) -> Image:
        """An image that the engine has; an `InputError` if it has none of the name."""
        found = self._asked("image", "inspect", "--format", "{{json .Config}}", "--", name)
        if found.returncode:
            raise InputError(f"the Docker engine has no image {name!r}: {_last(found.stderr)}")
        said = json.loads(found.stdout)
        env = dict(pair.split("=", 1) for pair in said.get("Env") or ())
        return Image(name, env, said.get("WorkingDir") or "/")

    def run(
        self, image: str, cpus: float, program: str, stdin: str = "", limits: Limits = _DEFAULT
    ) -> RunResult:
        """Run a Python program as root of a container of its own, which needs `python3` (3.9 or newer) in the image.

        Of the limits, `wall_s`, `memory_bytes`, `processes`, `output_bytes` and, a file, `file_bytes` hold; `cpus` are processors.

        Raises:
            SandboxError: the engine does not start it; this says nothing about the program.
            InputError: the image has no `python3`.
        """
        words = (
            "--network=none", "--log-driver=none", "--user=0:0", "--workdir=/", "--security-opt=no-new-privileges", "--cap-drop=ALL",
            *(f"--cap-add={right}" for right in _RIGHTS), f"--cpus={cpus:g}", f"--memory={limits.memory_bytes}",
            f"--memory-swap={limits.memory_bytes}", f"--pids-limit={limits.processes}", f"--ulimit=fsize={limits.file_bytes}",
            "--entrypoint=python3", image,
        )  # fmt: skip
        with self._turns:
            container = self._taken(words)
            result = container.result(program.encode(), stdin.encode(), limits)
        if result.exit_code == _NOT_BEGUN:
            raise SandboxError(f"the Docker engine starts no container: {result.stderr}")
        if result.exit_code in _NO_PROGRAM:
            raise InputError(
                f"image {image}: no python3 in it, which runs scripts and tests: {result.stderr}"
            )
        return result

    def close(self) -> None:
        """End the containers that wait."""
        with self._lock:
            left, self._waiting = self._waiting, []
        for container in left:
            container.leave()

    def _taken(self, words: tuple[str, ...]) -> _Container:
        """A container that waits, or a new one; another one is started in its place."""
        with self._lock:
            found = next((one for one in self._waiting if one.words == words), None)
            if found is not None:
                self._waiting.remove(found)
            self._waiting.append(_Container(self._docker, words))
            dropped = self._waiting[: max(0, len(self._waiting) - self._most)]
            del self._waiting[: len(dropped)]
        for one in dropped:
            one.leave()
        return found if found is not None and found.waits else _Container(self._docker, words)

    def _asked(
        self, *words: str, given: bytes = b"", seconds: float = _ASK_S
    ) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(  # noqa: S603  no shell; words of a task stand behind `--` or in an image's digest
                [*self._docker, *words], input=given, capture_output=True, timeout=seconds, check=False
            )  # fmt: skip
        except FileNotFoundError:
            raise SandboxError(
                "docker is not on PATH; install Docker's client", retryable=False
            ) from None
        except subprocess.TimeoutExpired:
            raise SandboxError(f"docker {words[0]} had not ended after {seconds:g} s") from None


class _Container:
    """Our end of one container."""

    def __init__(self, docker: list[str], words: tuple[str, ...]) -> None:
        self.words, self._docker = words, docker
        self._name = f"triforge-{secrets.token_hex(8)}"
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # noqa: S603
            [*docker, "run", "--rm", "-i", f"--name={self._name}", *words, "-I", "-S", "-c", _BOOT],
            stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True,
        )  # fmt: skip
        self._ended: Ended = "exit"
        self._over = threading.Event()

    @property
    def waits(self) -> bool:
        return self._process.poll() is None

    def result(self, program: bytes, stdin: bytes, limits: Limits) -> RunResult:
        """Run the program in it."""
        process, start = self._process, time.monotonic()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        out, errors = bytearray(), bytearray()
        reader = threading.Thread(target=self._read, args=(process.stderr, errors, None))
        watcher = threading.Thread(target=self._watch, args=(limits.wall_s,))
        for thread in (reader, watcher):
            thread.start()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"%08d" % len(program) + program + stdin)
            process.stdin.close()
        self._read(process.stdout, out, limits.output_bytes)
        code = process.wait()
        self._over.set()
        for thread in (reader, watcher):
            thread.join()
        process.stdout.close()
        process.stderr.close()
        return RunResult(
            ended=self._ended, exit_code=code if self._ended == "exit" else None, stdout=out.decode("utf-8", "replace"),
            stderr=_last(errors), seconds=time.monotonic() - start, cpu_s=0.0,
        )  # fmt: skip

    def leave(self) -> None:
        """Have one that waits end."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        self._process.wait()

    def _read(self, pipe: IO[bytes], into: bytearray, most: int | None) -> None:
        """Read to the end and keep the last bytes: all, or more than `most` end the run."""
        while part := os.read(pipe.fileno(), 65_536):
            into += part
            del into[: -(most or _ERRORS) - 1]
            if most is not None and len(into) > most:
                self._ended = "output"
                self._over.set()

    def _watch(self, seconds: float) -> None:
        """End the container when its time is up, or it has said too much."""
        if not self._over.wait(seconds):
            self._ended = "wall_time"
        if self._ended != "exit":
            with contextlib.suppress(subprocess.TimeoutExpired):
                words = [*self._docker, "kill", self._name]
                subprocess.run(words, capture_output=True, check=False, timeout=_ASK_S)  # noqa: S603
            self._process.kill()  # the client, where the engine does not answer


def _last(said: bytes | bytearray) -> str:
    return said.decode("utf-8", "replace").strip()[-500:]


@cache
def shared(engine: str, network: str) -> Containers:
    """The containers of this process."""
    return Containers(engine, network=network)
