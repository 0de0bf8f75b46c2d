"""Environments of the package `verifiers` in sessions of triforge. It runs where `verifiers` is installed and imports nothing of triforge.

PYTHON player.py ENV.toml [COUNT]                                writes the tasks, as rows of a pool
triforge agent run --keep --pool POOL -- PYTHON player.py        plays them: a session a line comes in, a reward a line goes out
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tomllib
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.env import Env
from verifiers.v1.episode import Episode
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

_KEY = "OPENAI_API_KEY"
_FORBIDDEN = re.compile(r"[^\w.-]")  # in names of a session's metrics
_MOST = 64  # metrics of a session


def rows(file: Path, count: int, out: TextIO) -> None:
    """Write tasks of an environment, each with the environment's configuration."""
    env = tomllib.loads(file.read_text(encoding="utf-8"))
    tasks = load_environment(resolve_env_config(env)).taskset
    for task in islice(tasks, count):
        data = task.data.model_dump(mode="json", exclude_defaults=True)
        out.write(json.dumps({"params": {"env": env, "data": data}}) + "\n")


class Player:
    """The environments in use, each with its servers."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._open: dict[str, Env[Any]] = {}

    async def play(self, given: dict[str, str]) -> dict[str, Any]:
        """Play one episode of a session's task; return its reward, or why there is none."""
        params = _task(given)["params"]
        env = await self._env(params["env"])
        kind = type(env.taskset).task_type()
        task = kind(kind.data_type().model_validate(params["data"]), env.config.taskset.task)
        os.environ[_KEY] = given[_KEY]  # one session at a time
        client = EvalClientConfig(base_url=given["OPENAI_BASE_URL"], api_key_var=_KEY)
        context = ModelContext(client=client, model="policy", sampling=SamplingConfig())
        (slot,) = env.slots(task)
        episode = await env.run_slot(slot, context)
        return reward(episode) if episode.ok else {"error": _why(episode)}

    async def _env(self, given: dict[str, Any]) -> Env[Any]:
        name = json.dumps(given, sort_keys=True)
        if name not in self._open:
            env = load_environment(resolve_env_config(given))
            await self._stack.enter_async_context(env.serving())
            self._open[name] = env
        return self._open[name]


def _task(given: dict[str, str]) -> Any:
    return json.loads(Path(given["TRIFORGE_TASK"]).read_text(encoding="utf-8"))


def reward(episode: Episode) -> dict[str, Any]:
    """Return the mean reward of the trainable agents, and the mean of each named reward and metric."""
    traces = [trace for trace in episode.traces if trace.agent.trainable] or episode.traces
    named: dict[str, list[float]] = {}
    for trace in traces:
        scores = {name: one.score for name, one in trace.rewards.items() if one is not None}
        for name, value in {**trace.metrics, **scores}.items():
            if value is not None:
                named.setdefault(name, []).append(value)
    means = [(_FORBIDDEN.sub("_", name)[:64], fmean(values)) for name, values in named.items()]
    metrics = dict(means[:_MOST])
    return {"score": fmean(trace.reward for trace in traces), "metrics": metrics}


def _why(episode: Episode) -> str:
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    return f"{errors[-1].type}: {errors[-1].message}" if errors else "the episode is not complete"


async def serve(out: TextIO) -> None:
    """Answer lines until the input ends."""
    async with AsyncExitStack() as stack:
        player = Player(stack)
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                result = await player.play(json.loads(line))
            except Exception as error:  # noqa: BLE001  an environment may raise anything: the episode is unmeasured
                result = {"error": f"{type(error).__name__}: {error}"}
            out.write(json.dumps(result) + "\n")
            out.flush()


def main() -> None:
    """Write tasks, or play; output of the environments goes to standard error."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        if len(sys.argv) > 1:
            rows(Path(sys.argv[1]), int((sys.argv[2:] or ["1000"])[0]), out)
        else:
            asyncio.run(serve(out))


if __name__ == "__main__":
    main()
