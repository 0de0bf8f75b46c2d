"""The processes of `triforge agent run`: a command for each session, or one that stays and plays session after session."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from triforge.access.exposure import is_loopback
from triforge.errors import InputError

SUCCESS, FAILURE = 0, 1  # exit codes; with any other nothing was measured
REWARD: Final = "TRIFORGE_REWARD"  # variable with the path of a reward file
_STOP_S: Final = 5.0  # between SIGTERM and SIGKILL
_LAST: Final = 500  # characters of the last error line
_LINES: Final = 5  # last lines of errors that are shown
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_URLS: Final = ("OPENAI_BASE_URL", "TRIFORGE_SESSION_URL")
_TRACEBACK: Final = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The end of a session.

    Attributes:
        code: the exit code; 0 for an agent that stays.
        answer: the answer or the reward that the agent wrote; None if it wrote none.
        ending: exit code and last error line of a command that has ended.
        errors: its last error lines.
        raised: whether the command ended with a Python exception.
    """

    code: int = SUCCESS
    answer: bytes | None = None
    ending: str = ""
    errors: str = ""
    raised: bool = False


class AgentProcess(Protocol):
    """A copy of an agent."""

    async def play(self, variables: Mapping[str, str], folder: Path, within_s: float) -> Result:
        """Play one session; `folder` is empty and belongs to the session."""

    async def stop(self) -> None:
        """End the process, if it runs."""


class SessionCommand:
    """A command that is started for each session.

    Args:
        prints: the answer is what it prints, not the reward file.
    """

    def __init__(self, command: Sequence[str], *, prints: bool) -> None:
        self._command, self._prints = command, prints

    async def play(self, variables: Mapping[str, str], folder: Path, within_s: float) -> Result:
        """Run the command to its end; one that takes longer than its session is stopped."""
        answer = folder / "stdout" if self._prints else Path(variables[REWARD])
        with (folder / "stdout").open("wb") as output, (folder / "stderr").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *self._command, env={**_inherited(variables), **variables}, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        code = -signal.SIGTERM
        try:
            with contextlib.suppress(TimeoutError):
                code = await asyncio.wait_for(process.wait(), within_s)
        finally:
            await _stop(process)
        text = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
        return Result(
            code=code,
            answer=answer.read_bytes() if answer.exists() else None,
            ending=f"the agent ended with {code}: {_last_line(text)}",
            errors="\n".join(text.strip().splitlines()[-_LINES:])[-_LINES * _LAST :],
            raised=code == FAILURE and _TRACEBACK in text,
        )

    async def stop(self) -> None:
        """Do nothing: each session has ended its own process."""


class StayingCommand:
    """A command that plays session after session: it reads the variables as a line of JSON and answers with a line.

    It is started when it is first needed, and again after it has ended.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._errors = b""

    async def play(self, variables: Mapping[str, str], folder: Path, within_s: float) -> Result:  # noqa: ARG002
        """Return the line that the agent answers; InputError if it ends or takes too long instead."""
        try:
            return Result(answer=await asyncio.wait_for(self._ask(variables), within_s))
        except TimeoutError:
            raise InputError("the agent had not answered when its session was over") from None

    async def _ask(self, variables: Mapping[str, str]) -> bytes:
        if self._process is not None and self._process.returncode is not None:
            await self.stop()  # it has ended since its last answer
        process = self._process or await self._start(variables)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(ConnectionError):  # it has ended; the empty line below says so
                process.stdin.write(json.dumps(dict(variables)).encode() + b"\n")
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
        last = _last_line(self._errors.decode(errors="replace"))
        raise InputError(f"the agent ended with {code} before it answered: {last}")

    async def _start(self, variables: Mapping[str, str]) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, env=_inherited(variables), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )  # fmt: skip
        assert self._process.stderr is not None
        self._errors = b""
        self._listening = asyncio.create_task(self._listen(self._process.stderr))
        return self._process

    async def _listen(self, errors: asyncio.StreamReader) -> None:
        while part := await errors.read(4096):
            self._errors = (self._errors + part)[-8 * _LAST :]

    async def stop(self) -> None:
        """End the process, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            await _stop(process)
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=_STOP_S)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End a command with every process that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if process.returncode is not None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _STOP_S)


def _inherited(session: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for an agent. No proxy leads to this machine's own addresses: clients go there directly."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("TRIFORGE_")}
    named = [variables.get(name, "") for name in ("NO_PROXY", "no_proxy")]
    asked = (urlsplit(session.get(name, "")).hostname or "" for name in _URLS)
    own = (host for host in (*_LOOPBACK, *asked) if is_loopback(host))
    listed = (host.strip() for text in named for host in text.split(","))
    hosts = dict.fromkeys(filter(None, (*listed, *own)))
    return variables | dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(hosts))


def _last_line(text: str) -> str:
    return "".join(text.strip().splitlines()[-1:])[-_LAST:] or "without an error message"
