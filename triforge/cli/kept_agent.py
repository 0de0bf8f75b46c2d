"""A copy of an agent's command that stays: it is given sessions one after another, as lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final

from triforge.errors import InputError

_STOP_S: Final = 5.0  # for an agent that is asked to end
_LAST: Final = 500  # characters of what it said last


async def stop(process: asyncio.subprocess.Process) -> None:
    """End a command with everything that it has started."""
    for number, patience_s in ((signal.SIGTERM, _STOP_S), (signal.SIGKILL, _STOP_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if process.returncode is not None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), patience_s)


class KeptAgent:
    """One copy, started when it is first needed and again after it has ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._said = b""

    async def play(self, given: Mapping[str, str], environment: Mapping[str, str]) -> bytes:
        """The line that it answers to a session's variables; InputError if it ends instead, and whoever is cancelled ends it."""
        if self._process is not None and self._process.returncode is not None:
            await self.stop()  # it has ended since it answered
        process = self._process or await self._start(environment)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(ConnectionError):  # it has ended, and says so below
                process.stdin.write(json.dumps(given).encode() + b"\n")
                await process.stdin.drain()
            if line := await process.stdout.readline():
                return line
            code = await process.wait()
        except ValueError as error:
            await self.stop()
            raise InputError(f"the agent's answer: {error}; expected one line") from None
        except asyncio.CancelledError:
            await self.stop()
            raise
        await self.stop()
        words = self._said.decode(errors="replace").strip().splitlines()[-1:]
        raise InputError(
            f"the agent ended with {code} before it answered: {''.join(words)[-_LAST:] or 'it said nothing'}"
        )

    async def _start(self, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )  # fmt: skip
        assert self._process.stderr is not None
        self._said = b""
        self._listening = asyncio.create_task(self._listen(self._process.stderr))
        return self._process

    async def _listen(self, errors: asyncio.StreamReader) -> None:
        while part := await errors.read(4096):
            self._said = (self._said + part)[-8 * _LAST :]

    async def stop(self) -> None:
        """End it, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            await stop(process)
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=_STOP_S)
