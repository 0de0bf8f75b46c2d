"""`make demo-agent`: an agent that is no part of triforge is trained, in sessions, with the demo's tiny policy."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from demo import warm_start
from demo.prepare import clear
from demo.settings import ROOT, DemoSettings
from demo.world import World
from triforge.cli.agent import Agents
from triforge.cli.pools import send_pool
from triforge.cli.started import Tell, clients_of, deployment
from triforge.cli.terminal import say
from triforge.cli.train import Trained, conduct, show
from triforge.cli.training import Training
from triforge.config import Settings, merge, with_assignments
from triforge.errors import TriforgeError

DOCUMENT: Final = "demo-agent.toml"
AGENTS: Final = ("ten_lines", "in_langgraph")
_HERE: Final = Path(__file__).parent / "agents"
_COPIES: Final = 8
# Of the games that the policy was warmed up on, those that it loses by forgetting to heat or to cool.
_GAMES: Final[dict[str, Any]] = {
    "receptacles": [3, 3],
    "distractors": [0, 1],
    "goals": ["heat", "cool"],
    "objects": ["mug", "apple", "potato", "cup", "egg", "tomato"],
    "kinds": ["fridge", "microwave", "countertop", "shelf", "diningtable"],
}


def main(arguments: list[str] | None = None) -> int:
    """Train the agent, and say how often it succeeded before and after; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo.agent", description=__doc__)
    parser.add_argument("agent", nargs="?", choices=AGENTS, default=AGENTS[0])
    parser.add_argument("--seed", type=int, default=1, help="seed of tasks, warm start and run")
    parser.add_argument("--state", type=Path, default=ROOT / "var" / "demo-agent", help="folder of the deployment")  # fmt: skip
    parser.add_argument("--set", action="append", default=[], help="one field of the run, e.g. run.steps=2; repeatable")  # fmt: skip
    options = parser.parse_args(arguments)
    console = Console(soft_wrap=True)
    try:
        record = _train(options, console, partial(say, to=console))
    except TriforgeError as error:
        say(f"demo: {error.detail}", to=console)
        return 1
    except KeyboardInterrupt:
        say("demo: interrupted; everything was stopped", to=console)
        return 130
    show(record)
    return 0 if record.run.status == "finished" else 1


def _train(options: argparse.Namespace, console: Console, tell: Tell) -> Trained:
    keep = options.agent != AGENTS[0]
    command = [_python(options.agent), str(_HERE / f"{options.agent}.py")]
    settings, state = DemoSettings(seed=options.seed), options.state.resolve()
    clear(state)
    policy, _ = warm_start.tiny_models(settings, tell)
    state.mkdir(parents=True)
    config = state / DOCUMENT
    config.write_bytes((ROOT / "configs" / DOCUMENT).read_bytes())
    wanted = Training(
        model=str(policy), env="household", config=config, overrides=with_assignments({}, options.set),
        generate=settings.generate | _GAMES, options=settings.options, tasks=64, heldout=64, seed=options.seed, state=state,
    )  # fmt: skip
    try:
        return asyncio.run(_play(wanted, command, keep, console, tell))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def _python(agent: str) -> str:
    """Return the interpreter of an agent: ours, or that of its own virtual environment, made the first time."""
    if agent == AGENTS[0]:
        return sys.executable
    from scripts.virtual_environments import ensure_files  # noqa: PLC0415  only of a checkout

    return str(ensure_files("langgraph", folder=_HERE))


async def _play(
    wanted: Training, command: list[str], keep: bool, console: Console, tell: Tell
) -> Trained:
    document = merge(wanted.document(tell), {"env_adapter": {"played_by": "sessions"}})
    async with (
        deployment(document, wanted.state, tell) as where,
        World(wanted.options).served() as os.environ["WORLD_URL"],
    ):
        run_id = await _submitted(wanted, document, where)
        tell(f"agents: {_COPIES} at a time of: {' '.join(command)}")
        async with asyncio.TaskGroup() as both:
            agents = Agents(where, command, _COPIES, keep=keep)
            playing = both.create_task(agents.serve("", run_id, "", {}))
            record = await conduct(replace(wanted, resume=run_id), document, where, console, tell)
            playing.cancel()
    return record


async def _submitted(wanted: Training, document: dict[str, Any], where: Settings) -> str:
    """Submit a run on a new pool."""
    name, body = wanted.request(document)
    async with clients_of(where) as (pools, trainer):
        pool = await send_pool(pools, name, body, environment=wanted.env)
        return (await trainer.submit(pool.id, config=document)).id


if __name__ == "__main__":
    sys.exit(main())
