"""The closed loop on this machine: `triforge.train` on household games, policy and judge on the device, success before and after.

The model is SmolLM2-135M-Instruct if its pieces (`--pack --with-model`) or its folder are there, else a tiny one made for the games.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.gpu.pack import GGUF_SHA256, pieces
from bench.gpu.supervise import SkipCase
from demo.models.smollm2 import NAME, default_cache, smollm2_folder
from triforge.cli.deployment import settings
from triforge.cli.figures import held_out
from triforge.cli.started import deployment
from triforge.cli.train import conduct
from triforge.cli.training import Training
from triforge.clients.trainer import TrainerClient

_GAMES = {"receptacles": [3, 4], "distractors": [0, 1], "goals": ["place"]}
_TEXT = {"wording": "alfworld", "answer": "whole"}
_LIMIT_S = 420.0
_LEARNER = {"learning_rate": 1e-5, "updates_per_step": 1, "token_budget": 16384, "max_tokens": 2048}


def smollm2() -> Path:
    """Return its folder. SkipCase: neither it nor its pieces are here."""
    parts = pieces()
    if (default_cache() / NAME / "manifest.json").is_file():
        return smollm2_folder()
    if not parts:
        raise SkipCase("no SmolLM2: neither its folder nor the pieces of --pack --with-model")

    def joined(scratch: Path) -> Path:
        file = scratch / "model.gguf"
        with file.open("wb") as out:
            for part in parts:
                out.write(part.read_bytes())
        if hashlib.sha256(file.read_bytes()).hexdigest() != GGUF_SHA256:
            raise SkipCase(f"SmolLM2: {len(parts)} pieces, together not the file: some are missing")
        return file

    return smollm2_folder(fetch=joined)


def _train(
    model: str, steps: int, groups: int, rollouts: int, max_steps: int, held: int, scratch: Path
) -> dict[str, Any]:
    """Train policy and reward model, or of the policy alone with a tiny one; ended after seven minutes, wherever it is."""
    over: dict[str, Any] = {
        "run": {
            "groups_per_step": groups, "eval_every": max(1, steps // 4), "eval_tasks": held, "eval_greedy": False,
            "keep_checkpoints": 1,
        },
        "adaptation": {"controller": "none"},
        "env_adapter": {"rollouts": rollouts, "max_steps": max_steps},
    }  # fmt: skip
    own: dict[str, Any] = {"model": "tiny"}
    if model != "tiny":
        folder = str(smollm2())
        over["env_adapter"]["admissible_only"] = True
        over |= {
            "models": {"policy": {"max_new_tokens": 16}, "reward": {"max_new_tokens": 8, "regex": r"\\boxed\{-?1\}"}},
            "reward": {"votes": 2, "prompt": "rubric"},
            "trainer": {"policy": _LEARNER, "reward": _LEARNER},
            "algorithm": {"preset": "rlanything", "overrides": {"reward_band": "none"}},
        }  # fmt: skip
        own = {"model": folder, "reward_model": folder, "generate": _GAMES, "options": _TEXT}
    tasks = max(8, 32 * groups)
    asked = Training(
        env="household", steps=steps, tasks=tasks, heldout=held, seed=1, state=scratch, overrides=over, **own
    )  # fmt: skip
    return asyncio.run(_conducted(asked))


async def _conducted(asked: Training) -> dict[str, Any]:
    tell = partial(print, "      ", flush=True)
    console = Console(width=120)
    document = asked.document(tell)
    async with deployment(document, asked.state, tell) as found:
        try:
            async with asyncio.timeout(_LIMIT_S):
                await conduct(asked, document, found, console, tell)
        except TimeoutError:
            tell("the time is over")
        url, key = settings(asked.state).trainer_url, found.key.get_secret_value()
        async with TrainerClient(url, api_key=key) as client:
            (run,) = await client.runs()
            steps = await client.steps(run.id)
    assert run.step > 0, f"the run is {run.status}: {run.reason}"
    return {"status": run.status, "steps": run.step, **_success(steps), **speeds(steps)}


def _success(steps: list[Any]) -> dict[str, Any]:
    shown, found = ("success", "low", "high", "episodes"), {}
    for name, part in (("before", steps[:1]), ("after", steps)):
        figures = held_out(part).get("sampled", {})
        found |= {f"{name}_{n}": figures[n] for n in shown if n in figures}
    return found


def speeds(steps: list[Any]) -> dict[str, float]:
    """Medians over the steps of all that is a speed or a time."""
    values: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        for name, value in step.metrics.items():
            if "per_s" in name or "seconds" in name:
                values[name].append(value)
    return {name: statistics.median(found) for name, found in sorted(values.items())}


CASES = {
    "smollm2": partial(_train, "smollm2", 100, 4, 8, 8, 32),
    "tiny": partial(_train, "tiny", 40, 8, 8, 24, 64),
}
REHEARSAL = {
    "tiny": partial(_train, "tiny", 2, 4, 8, 24, 4),
    "smollm2": partial(_train, "smollm2", 1, 1, 2, 2, 1),
}
