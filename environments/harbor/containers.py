"""Runs of programs in Docker containers, with the contract of `Sandbox.run_blocking`, for programs that need an image of their own."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import subprocess
import threading
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Final

from triforge.errors import InputError, SandboxError
from triforge.sandbox.limits import Ended, Limits, RunResult

Run = Callable[[str, str, Limits], RunResult]
"""`Sandbox.run_blocking`, or the same in containers of an image."""

_DEFAULT: Final = Limits()
_CALL_S: Final = 60.0
_ERRORS: Final = 65_536  # bytes of standard error that are kept
_NOT_BEGUN, _NO_PROGRAM = 125, (126, 127)  # statuses of `docker run`
_BOOT: Final = (
    "import os; n, s = int(os.read(0, 8)), b''\n"
    "while len(s) < n and (p := os.read(0, n - len(s))): s += p\n"
    "exec(compile(s, 'program.py', 'exec'))"
)
_CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")


@dataclass(frozen=True, slots=True)
class Image:
    """An image with its variables and its working directory."""

    name: str
    env: dict[str, str]
    workdir: str


class Containers:
    """Runs each program in a container of its own, several at a time, on one Docker engine.

    Args:
        engine: its address, such as `unix:///var/run/docker.sock`.
        network: of builds; a container that runs a program has none.
    """

    def __init__(self, engine: str, *, network: str = "none") -> None:
        self._docker, self._network = ["docker", "-H", engine], network
        self._turns = threading.BoundedSemaphore(os.cpu_count() or 1)
        self._building = threading.Lock()

    def built(self, context: bytes, seconds: float) -> Image:
        """Return the image of a build context (tar); build it where the engine has none of the same context."""
        name = f"triforge-task:{hashlib.sha256(context).hexdigest()[:32]}"
        with self._building:
            if self._call("image", "inspect", name).returncode:
                words = ("build", "-q", "--network", self._network, "-t", name, "-")
                build = self._call(*words, stdin=context, seconds=seconds)
                if build.returncode:
                    raise InputError(f"the image is not built: {_tail(build.stderr)}")
        return self.image(name)

    def image(self, name: str) -> Image:
        """Return an image that the engine has, or raise an `InputError`."""
        call = self._call("image", "inspect", "--format", "{{json .Config}}", "--", name)
        if call.returncode:
            raise InputError(f"the Docker engine has no image {name!r}: {_tail(call.stderr)}")
        config = json.loads(call.stdout)
        env = dict(pair.split("=", 1) for pair in config.get("Env") or ())
        return Image(name, env, config.get("WorkingDir") or "/")

    def run(
        self, image: str, cpus: float, program: str, stdin: str = "", limits: Limits = _DEFAULT
    ) -> RunResult:
        """Run a Python program as root of a container, whose image needs `python3` (3.9 or newer).

        Of the limits, `wall_s`, `memory_bytes`, `processes`, `output_bytes` and, for one file, `file_bytes` hold; `cpus` are
        processors.

        Raises:
            SandboxError: the engine does not start the container; the program has no result.
            InputError: the image has no `python3`.
        """
        name = f"triforge-{secrets.token_hex(8)}"
        command = [
            "run", "--rm", "-i", f"--name={name}", "--network=none", "--log-driver=none", "--user=0:0", "--workdir=/",
            "--security-opt=no-new-privileges", "--cap-drop=ALL", *(f"--cap-add={right}" for right in _CAPABILITIES),
            f"--cpus={cpus:g}", f"--memory={limits.memory_bytes}", f"--memory-swap={limits.memory_bytes}",
            f"--pids-limit={limits.processes}", f"--ulimit=fsize={limits.file_bytes}", "--entrypoint=python3", image,
            "-I", "-S", "-c", _BOOT,
        ]  # fmt: skip
        source = program.encode()
        data = b"%08d" % len(source) + source + stdin.encode()
        with self._turns:
            result = asyncio.run(self._result(name, command, data, limits))
        if result.exit_code == _NOT_BEGUN:
            raise SandboxError(f"the Docker engine starts no container: {result.stderr}")
        if result.exit_code in _NO_PROGRAM:
            raise InputError(f"image {image}: it has no python3: {result.stderr}")
        return result

    async def _result(
        self, name: str, command: list[str], data: bytes, limits: Limits
    ) -> RunResult:
        start, out = time.monotonic(), bytearray()
        ended: Ended = "exit"
        process = await asyncio.create_subprocess_exec(
            *self._docker, *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        assert process.stdin
        assert process.stdout
        assert process.stderr
        errors = asyncio.create_task(_last(process.stderr))
        try:
            async with asyncio.timeout(limits.wall_s):
                process.stdin.write(data)
                process.stdin.close()
                while len(out) <= limits.output_bytes and (
                    part := await process.stdout.read(2**16)
                ):
                    out += part
                if len(out) > limits.output_bytes:
                    ended = "output"
                else:
                    await process.wait()
        except TimeoutError:
            ended = "wall_time"
        if ended != "exit":
            with suppress(SandboxError):
                await asyncio.to_thread(self._call, "kill", name)
            process.kill()  # the client, where the engine does not answer
            while await process.stdout.read(2**16):
                pass
        code = await process.wait()
        return RunResult(
            ended=ended,
            exit_code=code if ended == "exit" else None,
            stdout=out[: limits.output_bytes].decode("utf-8", "replace"),
            stderr=_tail(await errors),
            seconds=time.monotonic() - start,
            cpu_s=0.0,
        )

    def _call(
        self, *words: str, stdin: bytes = b"", seconds: float = _CALL_S
    ) -> subprocess.CompletedProcess[bytes]:
        command = [
            *self._docker,
            *words,
        ]  # words of a task stand behind `--` or in an image's digest
        try:
            return subprocess.run(  # noqa: S603  no shell
                command, input=stdin, capture_output=True, timeout=seconds, check=False
            )
        except FileNotFoundError:
            raise SandboxError(
                "docker is not on PATH; install Docker's client", retryable=False
            ) from None
        except subprocess.TimeoutExpired:
            raise SandboxError(f"docker {words[0]} had not ended after {seconds:g} s") from None


async def _last(stream: asyncio.StreamReader) -> bytes:
    held = bytearray()
    while part := await stream.read(2**16):
        held = (held + part)[-_ERRORS:]
    return bytes(held)


def _tail(errors: bytes) -> str:
    return errors.decode("utf-8", "replace").strip()[-500:]


@cache
def shared(engine: str, network: str) -> Containers:
    """Return the containers of this process."""
    return Containers(engine, network=network)
