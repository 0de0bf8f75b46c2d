"""`triforge agent run`: copies of an agent of yours play the groups of a run, each in a session of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, Final, Literal

import typer
from pydantic import ValidationError

from triforge.cli.deployment import running
from triforge.cli.kept_agent import KeptAgent, stop
from triforge.cli.options import STATE, OverlayOption, SetOption, StateOption, overrides
from triforge.cli.terminal import say
from triforge.cli.train import show
from triforge.cli.training import Trained, left_by
from triforge.cli.verifier import verified
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.config import Settings, merge
from triforge.errors import (
    BusyError,
    ConfigError,
    ConflictError,
    EnvError,
    InputError,
    TriforgeError,
    UnavailableError,
)
from triforge.types import ENDED, MadeSession, RunState, SessionReward

agent_app = typer.Typer(no_args_is_help=True)

_LOOK_S: Final = 0.5  # how often the run and busy groups are asked
_SUCCESS, _FAILURE = 0, 1  # exit statuses; with any other nothing was measured
_REWARD, _STDOUT, _STDERR = "reward", "stdout", "stderr"  # files of a session
_MOST = 65_536  # bytes of a reward file
_TRACEBACK: Final = "Traceback (most recent call last)"
_REPEATS: Final = 3  # sessions of one ending that are told


@agent_app.command("run")
def agent_run(
    command: Annotated[list[str], typer.Argument(help="The agent's command, after --.")],
    pool: Annotated[str, typer.Option(help="Begin a run on this pool.")] = "",
    run: Annotated[str, typer.Option(help="Play for this run instead.")] = "",
    parallel: Annotated[int, typer.Option(min=1, help="Copies at a time.")] = 8,
    name: Annotated[str, typer.Option(help="Name of the new run.")] = "",
    reward: Annotated[
        Literal["agent", "verifier"], typer.Option(help="Who says what an episode was worth.")
    ] = "agent",
    keep: Annotated[
        bool, typer.Option(help="Keep copies running: sessions come as lines.")
    ] = False,
    config: OverlayOption = None,
    set_: SetOption = None,
    state: StateOption = STATE,
) -> None:
    """Let an agent of yours play a run's groups until the run has ended.

    Each copy finds OPENAI_BASE_URL and OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY, the task in
    TRIFORGE_INSTRUCTION and as JSON in the file TRIFORGE_TASK. Its reward is what was posted to TRIFORGE_SESSION_URL/reward,
    else what it writes to the file TRIFORGE_REWARD (a number, or the JSON of a reward), else its exit status: 0 is success, 1 is
    failure, and with any other nothing was measured. With `--reward verifier` the task's family grades what the agent prints, if
    it ends with 0. With `--keep` a copy is started once: each session is a line on its standard input, these variables as JSON,
    and it answers with a line, what it would have written to the file or printed.
    """
    if bool(pool) == bool(run):
        raise typer.BadParameter("give one of --pool and --run", param_hint="--pool")
    over = merge(overrides(config, set_), {"env_adapter": {"played_by": "sessions"}})
    found = running(state)
    agents = Agents(found, command, parallel, verify=reward == "verifier", keep=keep)
    ended = asyncio.run(_serve(found, agents.serve(pool, run, name, over)))
    show(ended)
    if ended.run.status == "failed":
        raise typer.Exit(1)


async def _serve(found: Settings, playing: Coroutine[Any, Any, RunState]) -> Trained:
    started = time.monotonic()
    run = await playing
    return await left_by(run.id, found, time.monotonic() - started)


class Agents:
    """Copies of a command, as many at a time as may be."""

    def __init__(
        self,
        found: Settings,
        command: Sequence[str],
        parallel: int,
        *,
        verify: bool = False,
        keep: bool = False,
    ) -> None:
        self._command, self._parallel, self._verify = command, parallel, verify
        self._keep = keep
        key = found.key.get_secret_value()
        self._env = EnvAdapterClient(found.env_adapter_url, api_key=key)
        self._trainer = TrainerClient(found.trainer_url, api_key=key)
        self._url = found.env_adapter_url
        self._said = Counter[str]()

    async def serve(self, pool: str, run_id: str, name: str, config: dict[str, Any]) -> RunState:
        """Play for a run until it has ended."""
        async with self._env, self._trainer:
            if run_id:
                run = await self._trainer.run(run_id)
            else:
                run = await self._trainer.submit(pool, name=name, config=config)
            say(f"{run.id}: {run.steps} steps, {self._parallel} agents at a time")
            players = [asyncio.create_task(self._play_on(run.id)) for _ in range(self._parallel)]
            try:
                return await self._until_ended(run.id, players)
            except ConfigError:  # no session of ours will have a reward
                if not run_id:
                    await self._trainer.stop(run.id)
                raise
            finally:
                for player in players:
                    player.cancel()
                await asyncio.gather(*players, return_exceptions=True)

    async def _until_ended(self, run_id: str, players: Sequence[asyncio.Task[None]]) -> RunState:
        while True:
            with contextlib.suppress(UnavailableError):
                run = await self._trainer.run(run_id)
                if run.status in ENDED:
                    return run
            done, _ = await asyncio.wait(players, timeout=_LOOK_S)
            for player in done:
                if error := player.exception():
                    raise error
            if len(done) == len(players):
                await asyncio.sleep(_LOOK_S)  # they were told that it has ended

    async def _play_on(self, run_id: str) -> None:
        kept = KeptAgent(self._command) if self._keep else None
        try:
            await self._until_told(run_id, kept)
        finally:
            if kept is not None:
                await kept.stop()

    async def _until_told(self, run_id: str, kept: KeptAgent | None) -> None:
        while True:
            try:
                made = await self._env.begin_session(run=run_id)
            except (BusyError, UnavailableError):
                await asyncio.sleep(_LOOK_S)
                continue
            except ConflictError:
                if (await self._trainer.run(run_id)).status in ENDED:
                    return
                raise
            await self._play(made, kept)

    async def _play(self, made: MadeSession, kept: KeptAgent | None) -> None:
        """Run the command once in a session, or give the session to one that runs, and say how it went."""
        session_id, code = made.session.id, _SUCCESS
        with tempfile.TemporaryDirectory(prefix="triforge-agent-") as folder:
            try:
                if kept is None:
                    code = await self._run(made, Path(folder))
                else:
                    await self._give(made, kept, Path(folder))
                if (await self._env.session(session_id)).reward is not None:
                    await self._env.end_session(session_id)
                    return
                found = await self._reward(made, code, Path(folder))
                await self._env.reward_session(session_id, found)
                if code == _FAILURE and _TRACEBACK in _errors(Path(folder)):
                    why = f"the agent raised, which counts as a failure: {_last_line(Path(folder))}"
                    self._say_once(session_id, why, "")
            except asyncio.CancelledError:  # others may have the place at once
                with contextlib.suppress(TriforgeError):
                    await self._env.end_session(session_id, error="its agent was interrupted")
                raise
            except TriforgeError as error:  # nothing was measured
                await self._env.end_session(session_id, error=error.detail)
                if isinstance(error, ConfigError):
                    raise
                if kept is not None and not isinstance(error, EnvError):
                    await kept.stop()  # what it prints next may be of this session
                ended = f"the agent ended with {code}: {_last_line(Path(folder))}"
                self._say_once(session_id, error.detail, "" if kept else ended)

    def _say_once(self, session_id: str, why: str, ended: str) -> None:
        """Why nothing was measured; what has been said often enough is not said again."""
        detail = why.removeprefix(f"session {session_id} ")
        self._said[ended or detail] += 1
        if self._said[ended or detail] > _REPEATS:
            return
        say(f"session {session_id}: {detail}{'' if ended in detail else f'; {ended}'}")
        if self._said[ended or detail] == _REPEATS:
            say("further sessions that end like this are not shown")

    async def _reward(self, made: MadeSession, code: int, folder: Path) -> SessionReward:
        if not self._verify:
            return _reward(code, folder)
        if code != _SUCCESS or made.task is None:
            return _of_status(code, folder)
        answer = (folder / _STDOUT).read_text(encoding="utf-8", errors="replace").strip()
        return await verified(made.task, made.options, answer)

    async def _give(self, made: MadeSession, kept: KeptAgent, folder: Path) -> None:
        """Have a copy that stays play, and write its answer where one that ends leaves its own."""
        try:
            async with asyncio.timeout(_seconds(made)):
                answer = await kept.play(self._session(made, folder), _inherited())
        except TimeoutError:
            raise InputError("the agent had not answered when its session was over") from None
        (folder / (_STDOUT if self._verify else _REWARD)).write_bytes(answer)

    async def _run(self, made: MadeSession, folder: Path) -> int:
        """The command's exit status; one that goes on longer than its session is ended."""
        with _opened(folder / _STDOUT) as answer, _opened(folder / _STDERR) as errors:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env=_inherited() | self._session(made, folder),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=answer if self._verify else asyncio.subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(_seconds(made)):
                return await process.wait()
        except TimeoutError:
            return -signal.SIGTERM
        finally:
            await stop(process)

    def _session(self, made: MadeSession, folder: Path) -> dict[str, str]:
        """What an agent finds in its environment, and the file that this names."""
        task = folder / "task.json"
        task.write_text(made.task.model_dump_json() if made.task else "{}", encoding="utf-8")
        return {
            "OPENAI_BASE_URL": made.base_url,
            "OPENAI_API_KEY": made.key,
            "ANTHROPIC_BASE_URL": made.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": made.key,
            "TRIFORGE_SESSION_URL": f"{self._url}/v1/sessions/{made.session.id}",
            "TRIFORGE_SESSION_KEY": made.key,
            "TRIFORGE_OPTIONS": json.dumps(made.options),
            "TRIFORGE_INSTRUCTION": made.task.instruction if made.task else "",
            "TRIFORGE_TASK": str(task),
            "TRIFORGE_REWARD": str(folder / _REWARD),
        }


def _opened(path: Path) -> IO[bytes]:
    return path.open("wb")


def _seconds(made: MadeSession) -> float:
    """What is left of a session."""
    return max(0.0, made.session.expires_at - time.time())


def _inherited() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("TRIFORGE_")}


def _reward(code: int, folder: Path) -> SessionReward:
    """The reward of a command that has ended; InputError if nothing was measured."""
    with contextlib.suppress(FileNotFoundError):
        return _parsed((folder / _REWARD).read_bytes()[:_MOST])
    return _of_status(code, folder)


def _of_status(code: int, folder: Path) -> SessionReward:
    if code in (_SUCCESS, _FAILURE):
        return SessionReward(success=code == _SUCCESS)
    raise InputError(f"the agent ended with {code}: {_last_line(folder)}")


def _errors(folder: Path) -> str:
    """What the agent wrote to standard error; one that stays has no file of it."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / _STDERR).read_text(encoding="utf-8", errors="replace")
    return ""


def _last_line(folder: Path) -> str:
    return "".join(_errors(folder).strip().splitlines()[-1:])[:500] or "it said nothing"


def _parsed(text: bytes) -> SessionReward:
    try:
        found = json.loads(text)
        given = found if isinstance(found, dict) else {"score": found}
        if given.keys() != {"error"}:
            return SessionReward.model_validate(given)
    except (ValueError, ValidationError) as error:
        said = str(error).splitlines()[0]
        raise InputError(
            f"TRIFORGE_REWARD: given {text[:80]!r}, expected a number or the JSON of a reward ({said})"
        ) from None
    raise EnvError(f"the agent says: {str(given['error'])[:500]}")
