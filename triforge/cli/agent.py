"""`triforge agent run`: copies of the user's agent play the groups of a run, each in a session of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from typer import Argument, Option

from triforge.cli.agent_process import (
    FAILURE,
    REWARD,
    SUCCESS,
    AgentProcess,
    Result,
    SessionCommand,
    StayingCommand,
)
from triforge.cli.deployment import (
    INTERRUPTED,
    STATE,
    OverlayOption,
    SetOption,
    StateOption,
    overrides,
    running,
    state_option,
)
from triforge.cli.figures import MODES
from triforge.cli.terminal import console, say
from triforge.cli.train import Trained, result_of, show
from triforge.cli.watch import watch
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.config import Settings, merge, parse
from triforge.environments.kit import parse_model
from triforge.environments.registry import family
from triforge.errors import (
    BusyError,
    ConfigError,
    ConflictError,
    EnvError,
    InputError,
    TriforgeError,
    UnavailableError,
)
from triforge.json_text import loads
from triforge.rollout.isolation import fresh_environment
from triforge.rollout.live import LiveEnvironment
from triforge.types import ENDED, MadeSession, Params, RunState, SessionReward, Task

agent_app = typer.Typer(no_args_is_help=True)

_LOOK_S: Final = 0.5  # between two looks at the run or at busy groups
_LAST_S: Final = 5.0  # for the last lines of its progress
_GROUP: Final = re.compile(r".*-(\d+)-(\w+)-\d+")  # step and mode
_MOST: Final = 65_536  # bytes of a reward
_REPEATS: Final = 3  # sessions with the same ending that are shown


@agent_app.command("run")
def agent_run(
    command: Annotated[list[str], Argument(help="The agent's command, after --.")],
    pool: Annotated[str, Option(help="Begin a run on this pool.")] = "",
    run: Annotated[str, Option(help="Play for this run instead.")] = "",
    parallel: Annotated[int, Option(min=1, help="Copies at a time.")] = 8,
    name: Annotated[str, Option(help="Name of the new run.")] = "",
    reward: Annotated[
        Literal["agent", "verifier"], Option(help="What measures an episode.")
    ] = "agent",
    keep: Annotated[bool, Option(help="Keep copies running: sessions come as lines.")] = False,
    config: OverlayOption = None,
    set_: SetOption = None,
    state: StateOption = STATE,
) -> None:
    """Let your agent play a run's groups until the run has ended.

    Each copy gets OPENAI_BASE_URL and OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY, the task in
    TRIFORGE_INSTRUCTION and as JSON in the file TRIFORGE_TASK. Its reward is the one posted to TRIFORGE_SESSION_URL/reward,
    else the content of the file TRIFORGE_REWARD (a number, or the JSON of a reward), else its exit code: 0 is success, 1 is
    failure, and with any other nothing was measured. With `--reward verifier` the task's family grades the output of an agent
    that ends with 0. With `--keep` a copy is started once: it reads a line for each session, these variables as JSON, and
    answers with a line, its reward or its answer.
    """
    if bool(pool) == bool(run):
        raise typer.BadParameter("give one of --pool and --run", param_hint="--pool")
    if shutil.which(command[0]) is None:
        raise typer.BadParameter(f"given {command[0]}, expected a program", param_hint="COMMAND")
    over = merge(overrides(config, set_), {"env_adapter": {"played_by": "sessions"}})
    addresses = running(state)
    agents = Agents(addresses, command, parallel, verify=reward == "verifier", keep=keep)

    async def work() -> Trained:
        started = time.monotonic()
        ended = await agents.serve(pool, run, name, over)
        return await result_of(ended.id, addresses, time.monotonic() - started)

    try:
        trained = asyncio.run(work())
    except KeyboardInterrupt:
        if agents.run_id:
            how = f"{' --keep' * keep} --reward {reward} --parallel {parallel}{state_option(state)}"
            again = f"triforge agent run --run {agents.run_id}{how} -- {shlex.join(command)}"
            stop = f"triforge run stop {agents.run_id}{state_option(state)}"
            say(f"{agents.run_id} waits for agents: go on with {again}, or end it with {stop}")
        raise typer.Exit(INTERRUPTED) from None
    show(trained)
    if trained.run.status == "failed":
        raise typer.Exit(1)


class _Progress:
    """The sessions that a run needs, and those that have ended; a terminal shows the run's groups instead.

    `every_s` are the seconds between two lines.
    """

    def __init__(self, run: RunState, every_s: float) -> None:
        config = parse(run.config)
        section = config.run
        each = section.eval_rollouts + section.eval_greedy
        self._train = section.groups_per_step * config.env_adapter.rollouts
        self._evaluate = section.eval_tasks * each if section.eval_every else 0
        self._ended, self._shown, self._every_s = Counter[str](), time.monotonic(), every_s

    @property
    def needed(self) -> str:
        """Sessions of a step and of an evaluation, as words."""
        evaluation = f", an evaluation at most {self._evaluate}" if self._evaluate else ""
        return f"a step has {self._train} sessions{evaluation}"

    def end(self, group_id: str) -> None:
        """Count a session, and print how many have ended if that is due."""
        if (found := _GROUP.fullmatch(group_id)) is None:
            return
        evaluates = found[2] in MODES
        phase = f"step {int(found[1])}{', evaluation' * evaluates}"
        self._ended[phase] += 1
        if not console.is_terminal and time.monotonic() - self._shown >= self._every_s:
            self._shown = time.monotonic()
            total = self._evaluate if evaluates else self._train
            say(f"{phase}: sessions {self._ended[phase]} of {total}")


class Agents:
    """Copies of a command, `parallel` at a time; progress is printed every `progress_s` seconds.

    Attributes:
        run_id: the run that they play; empty before it has begun.
    """

    def __init__(
        self,
        addresses: Settings,
        command: Sequence[str],
        parallel: int,
        *,
        verify: bool = False,
        keep: bool = False,
        progress_s: float = 10.0,
    ) -> None:
        self._progress_s = progress_s
        self._command, self._parallel, self._verify, self._keep = command, parallel, verify, keep
        key = addresses.key.get_secret_value()
        self._env = EnvAdapterClient(addresses.env_adapter_url, api_key=key)
        self._trainer = TrainerClient(addresses.trainer_url, api_key=key)
        self._url = addresses.env_adapter_url
        self._endings = Counter[str]()
        self.run_id = ""

    async def serve(self, pool: str, run_id: str, name: str, config: dict[str, Any]) -> RunState:
        """Play for a run until it has ended."""
        async with self._env, self._trainer:
            if run_id:
                run = await self._trainer.run(run_id)
            else:
                run = await self._trainer.submit(pool, name=name, config=config)
            self.run_id, progress = run.id, _Progress(run, self._progress_s)
            say(
                f"{run.id}: {run.steps} steps, {self._parallel} agents at a time; {progress.needed}"
            )
            if not self._keep:
                say(
                    "each session starts the command anew; with --keep a copy plays one after the other"
                )
            playing = (self._play_all(run.id, progress) for _ in range(self._parallel))
            players = [asyncio.create_task(player) for player in playing]
            watching = asyncio.create_task(watch(console, self._trainer, run.id))
            try:
                ended = await self._until_ended(run.id, players)
                await asyncio.wait([watching], timeout=_LAST_S)
                return ended
            except ConfigError:  # no session of these agents will have a reward
                if not run_id:
                    await self._trainer.stop(run.id)
                raise
            finally:
                for task in (*players, watching):
                    task.cancel()
                await asyncio.gather(*players, watching, return_exceptions=True)

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
            if len(done) == len(players):  # they have seen the end of the run before
                await asyncio.sleep(_LOOK_S)

    async def _play_all(self, run_id: str, progress: _Progress) -> None:
        """Play sessions of a run until it has ended."""
        process: AgentProcess = SessionCommand(self._command, prints=self._verify)
        if self._keep:
            process = StayingCommand(self._command)
        try:
            while (session := await self._begin(run_id)) is not None:
                await self._play(session, process)
                progress.end(session.session.group_id or "")
        finally:
            await process.stop()

    async def _begin(self, run_id: str) -> MadeSession | None:
        """Begin a session as soon as the run offers one; None when the run has ended."""
        while True:
            try:
                return await self._env.begin_session(run=run_id)
            except (BusyError, UnavailableError):
                await asyncio.sleep(_LOOK_S)
            except ConflictError:
                if (await self._trainer.run(run_id)).status in ENDED:
                    return None
                raise

    async def _play(self, made: MadeSession, process: AgentProcess) -> None:
        """Play a session and send its reward; a session without a measurement ends with the reason."""
        session_id, result = made.session.id, Result()
        with tempfile.TemporaryDirectory(prefix="triforge-agent-") as folder:
            try:
                left_s = made.session.expires_at - made.session.created_at  # by one clock
                variables = self._variables(made, Path(folder))
                result = await process.play(variables, Path(folder), left_s)
                if (await self._env.session(session_id)).reward is not None:
                    await self._env.end_session(session_id)
                    return
                await self._env.reward_session(session_id, await self._reward(made, result))
                if result.raised:
                    last = result.ending.partition(": ")[2]
                    why = f"the agent raised, which counts as a failure: {last}"
                    self._say(session_id, why, result)
            except asyncio.CancelledError:  # its place is free for others at once
                with contextlib.suppress(TriforgeError):
                    await self._env.end_session(session_id, error="its agent was interrupted")
                raise
            except TriforgeError as error:
                reason = error.detail.removeprefix(f"session {session_id}").lstrip(": ")
                if result.ending not in reason:
                    reason = f"{reason}; {result.ending}"
                await self._env.end_session(session_id, error=reason)
                if isinstance(error, ConfigError):
                    raise
                if not isinstance(error, EnvError):
                    await process.stop()  # its next line may be of this session
                self._say(session_id, reason, result)

    def _say(self, session_id: str, reason: str, result: Result) -> None:
        """Print why a session has no measurement, a few times for each ending, and once the last lines of the agent's errors."""
        ending = result.ending or reason
        self._endings[ending] += 1
        count = self._endings[ending]
        if count <= _REPEATS:
            say(f"session {session_id}: {reason}")
        if count == 1 and "\n" in result.errors:
            say(f"the last lines of its errors:\n{result.errors}")
        if count == _REPEATS:
            say("further sessions that end like this are not shown")

    async def _reward(self, made: MadeSession, result: Result) -> SessionReward:
        """Return the reward of a session; InputError if nothing was measured."""
        if self._verify and result.code == SUCCESS and made.task is not None:
            answer = (result.answer or b"").decode(errors="replace").strip()
            return await verified(made.task, made.options, answer)
        if not self._verify and result.answer is not None:
            return _parsed(result.answer[:_MOST])
        if result.code in (SUCCESS, FAILURE):
            return SessionReward(success=result.code == SUCCESS)
        raise InputError(result.ending)

    def _variables(self, made: MadeSession, folder: Path) -> dict[str, str]:
        """Return the environment variables of a session, and write the file of its task."""
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
            REWARD: str(folder / "reward"),
        }


def _parsed(text: bytes) -> SessionReward:
    try:
        value = loads(text)
        fields = value if isinstance(value, dict) else {"score": value}
        if fields.keys() != {"error"}:
            return parse_model(SessionReward, fields, "reward")
    except ValueError as error:
        raise InputError(
            f"{REWARD}: given {text[:80]!r}, expected a number or the JSON of a reward ({error})"
        ) from None
    raise EnvError(f"the agent reports: {str(fields['error'])[:500]}")


async def verified(task: Task, options: Params, answer: str) -> SessionReward:
    """Return the family's reward of a final answer; ConfigError if one answer does not end an episode with a score."""
    live = LiveEnvironment(partial(fresh_environment, family(task.family), options), task, 0)
    try:
        await live.start()
        result = await live.step(answer)
    finally:
        await live.close()
    score = result.reward if result.score is None else result.score
    if not result.done or (score is None and result.success is None):
        raise ConfigError(
            f"--reward verifier: given tasks of the family {task.family}, expected a family whose episodes end with one answer "
            "and a score, such as prompts, code or reasoning_gym; let the agent give its reward itself"
        )
    return SessionReward(score=score, success=result.success)
