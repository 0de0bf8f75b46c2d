"""`verifiers`' evaluation loop over one-turn tasks, for `bench.control_plane`. Runs in its own environment and imports nothing of ours.

python verifiers_eval.py WORK.json

What it prints last is JSON: rollouts, how many were good, and seconds from the first start to the last end.
"""

import asyncio
import json
import logging
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.cli.eval.runner import run_eval
from verifiers.v1.configs.cli.eval import EvalConfig


class CornerData(vf.TaskData):
    """A question, as the prompt."""


class CornerTask(vf.Task[CornerData]):
    """Who says "left" has won."""

    @vf.reward(weight=1.0)
    async def went_left(self, trace: vf.Trace) -> float:
        """1 or 0."""
        return float(trace.last_reply == "left")


class CornersConfig(vf.TasksetConfig):
    """How many tasks."""

    count: int = 1


class CornersTaskset(vf.Taskset[CornerTask, CornersConfig]):
    """The bench's tasks."""

    def load(self) -> list[CornerTask]:
        """All of them."""
        return [
            CornerTask(CornerData(prompt=f"Which way at corner {number}?"), self.config.task)
            for number in range(self.config.count)
        ]


__all__ = ["CornersTaskset"]


def config(work: dict[str, Any], name: str, prompts: int, rollouts: int) -> EvalConfig:
    """An evaluation with the smallest harness that there is, in the runtime without a container."""
    seat = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    return EvalConfig.model_validate(
        {
            "model": "zero",
            "client": {"type": "eval", "base_url": f"{work['engine']}/v1", "api_key_var": "OPENAI_API_KEY"},
            "env": {"taskset": {"id": "verifiers_eval", "count": prompts}, "agent": seat},
            "sampling": {"max_tokens": 16, "temperature": 1.0},
            "num_rollouts": rollouts, "max_concurrent": work["concurrency"], "rich": None, "push": False,
            "output_dir": work["out"], "run": {"name": name},
        }
    )  # fmt: skip


def main() -> None:
    work = json.loads(Path(sys.argv[1]).read_text())
    os.environ["OPENAI_API_KEY"] = "none"
    logging.disable(logging.INFO)

    async def evaluate() -> tuple[float, list[Any]]:
        await run_eval(config(work, "warm", 2, 1))  # installs what its programs need
        started = time.perf_counter()
        episodes = await run_eval(config(work, "timed", work["prompts"], work["rollouts"]))
        return time.perf_counter() - started, episodes

    seconds, episodes = asyncio.run(evaluate())
    good = [e for e in episodes if e.ok and e.traces and e.traces[0].num_turns == 1]
    count = work["prompts"] * work["rollouts"]
    found = {
        "version": version("verifiers"),
        "rollouts": count,
        "good": len(good),
        "seconds": seconds,
    }
    print(json.dumps(found | {"rollouts_s": len(good) / seconds}))


if __name__ == "__main__":
    main()
