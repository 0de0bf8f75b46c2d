"""What a reader waits for on a long run: pages of a run of 1,000 steps and 100,000 trajectories, on SQLite.

    page    milliseconds of processor time from the request to the HTML, dashboard and trainer together, in this process
    commit  milliseconds of the transaction that ends a step, with and without the lines of its trajectories
    memory  MiB of this process after each round of requests, a request of each page a round

Run, with the allocators of services: MALLOC_ARENA_MAX=2 ARROW_DEFAULT_MEMORY_POOL=system python -m bench.dashboard [--small] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from bench.machine import machine, rss_mib
from services.dashboard.apis import Apis
from services.dashboard.app import create_app as dashboard_app
from services.trainer.app import create_app as trainer_app
from services.trainer.runs.runs import Runs
from services.trainer.runs.store import RunStore
from triforge.config import Settings
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import open_database
from triforge.store.step_records import SCHEMA, write_step_records
from triforge.testing.model_folders import words_folder
from triforge.types import RunStep

WANTED_MS = 300.0
# of a step, a rollout, a turn; rollouts of a group
ROLLOUTS, TURNS, TOKENS, GROUP = (100, 10, 40, 10)
_DEMO = json.loads((Path(__file__).parents[1] / "tests/recorded_run/run.json").read_text())
_NAMES = sorted({name for step in _DEMO["steps"] for name in step["metrics"]})
_MEASURES = (*_NAMES, *(f"m{n}" for n in range(304 - len(_NAMES))))  # as many as a demo's step has
_WORDS = ("mug", "plate", "shelf", "drawer", "fridge", "clean", "heat", "take", "open", "go")


def line(run_id: str, step: int, number: int, rng: random.Random) -> dict[str, Any]:
    """A trajectory's line as a step leaves it: 10 actions of three words."""
    group = f"{run_id}-{step:05d}-train-{number // GROUP:04d}"
    outcome = rng.choice((1, -1, -1, None))
    said = "\n".join(" ".join(rng.choices(_WORDS, k=3)) for _ in range(TURNS + 3))
    vote = rng.uniform(-1.0, 1.0)
    return {
        "id": f"{group}-{number % GROUP:02d}", "run_id": run_id, "step": step, "purpose": "train", "group_id": group,
        "task_id": f"t-{rng.randrange(512):06d}", "task_slot": "t", "kind": rng.choice(_WORDS), "outcome": outcome,
        "score": None if outcome is None else float(outcome == 1), "length": rng.randint(1, TURNS), "tokens": TURNS * TOKENS,
        "truncated": rng.random() < 0.05, "staleness": rng.randint(0, 3), "votes": 30, "vote": vote,
        "against": vote * (outcome or 0) < 0, "advantage": rng.gauss(0.0, 1.0), "reason": "", "instruction": said[:60],
        "error": "" if outcome else "the environment broke", "words": said,
    }  # fmt: skip


def records(run_id: str, step: int, rng: random.Random) -> list[dict[str, Any]]:
    """The record of a step whose rollouts have 10 turns of 40 tokens with 3 votes each."""
    text = " ".join(rng.choices(_WORDS, k=60))
    made = []
    for number in range(ROLLOUTS):
        group = f"{run_id}-{step:05d}-train-{number // GROUP:04d}"
        for turn in range(TURNS):
            ids = rng.choices(range(5, 500), k=TOKENS)
            logprobs = [rng.uniform(-3.0, 0.0) for _ in ids]
            vote = {
                "value": 1, "text": text, "ids": ids, "logprobs": logprobs, "versions": [step] * TOKENS, "reason": "",
                "reward": 1.0, "advantage": 0.5, "weight": 0.1,
            }  # fmt: skip
            made.append(dict.fromkeys(SCHEMA.names) | {
                "run_id": run_id, "step": step, "purpose": "train", "group_id": group, "task_id": "t",
                "instruction": text, "trajectory_id": f"{group}-{number % GROUP:02d}", "segment": 0, "step_index": turn,
                "observation": text, "response": text, "action": " ".join(rng.choices(_WORDS, k=3)),
                "action_valid": True, "next_observation": text, "context_ids": ids * 3, "response_ids": ids,
                "response_logprobs": logprobs, "policy_versions": [step] * TOKENS, "outcome": 1, "score": 1.0,
                "reward": 1.0, "advantage": 0.5, "weight": 0.1, "reason": "", "judge_prompt_ids": ids * 5,
                "votes": [vote] * 3, "images": [], "programs": [], "tests": [], "finish": "stop", "admissible": [text] * 5,
            })  # fmt: skip
    return made


def fill(
    store: RunStore, artifacts: ArtifactStore, model: Path, steps: int
) -> tuple[list[str], dict[str, float]]:
    """Two runs of so many steps, the second without lines of trajectories; returns their ids and what committing took."""
    rng = random.Random(1)
    spent: dict[str, list[float]] = {"commit": [], "commit without lines": []}
    runs = []
    for what in spent:
        run = store.create(name=what, pool_id="pool", config={"run": {"steps": steps}})
        store.begin(
            run.id, state={"paths": {"policy": str(model)}}, versions={"policy": 0, "reward": 0}
        )
        runs.append(run.id)
    uri = write_step_records(artifacts, "bench.parquet", records(runs[0], steps, rng))
    for step in range(1, steps + 1):
        for run_id, what in zip(runs, spent, strict=True):
            own = what == "commit"
            lines = [line(run_id, step, n, rng) for n in range(ROLLOUTS if own else 0)]
            measures = {name: rng.random() for name in _MEASURES}
            made = RunStep(
                run_id=run_id, step=step, at=60.0 * step, policy_version=step, reward_version=step,
                metrics=measures | {"judge/alarm": float(step % 100 == 0)},
                artifacts={"step_record": uri} if own and step == steps else {},
            )  # fmt: skip
            started = time.perf_counter()
            store.commit_step(made, lines=lines)
            spent[what].append((time.perf_counter() - started) * 1e3)
    return runs, {name: statistics.median(values) for name, values in spent.items()}


def addresses(runs: Sequence[str], steps: int) -> dict[str, str]:
    base, group = f"/runs/{runs[0]}", f"{runs[0]}-{steps:05d}-train-0003"
    found = {
        "run": "",
        "run, smoothed, by time": "?x=time&smooth=0.9",
        "rollouts, newest": "/rollouts",
        "one step": "/rollouts?step=1",
        "votes against the outcome": "/rollouts?against=true",
        "failed by infrastructure": "/rollouts?outcome=unmeasured",
        "one task": "/rollouts?task=t-000007",
        "a kind, long, stale": "/rollouts?kind=heat&min_length=9&min_staleness=3",
        "words that many have": "/rollouts?search=open%20fridge",
        "words that none has": "/rollouts?search=carpet",
        "by advantage": "/rollouts?sort=-advantage",
        "by votes, against": "/rollouts?sort=vote&against=true",
        "behind a cursor": f"/rollouts?cursor={steps}/{steps}/50",
        "rollout": f"/rollouts/{group}-04",
        "tokens": f"/rollouts/{group}-04/tokens",
        "tokens as a table": f"/rollouts/{group}-04/tokens?by=version&form=table",
        "group": f"/groups/{group}",
    }
    compared = "/compare?" + "&".join(f"run={run}" for run in runs)
    return {name: base + path for name, path in found.items()} | {"two runs compared": compared}


async def pages(
    store: RunStore, artifacts: ArtifactStore, wanted: Mapping[str, str], rounds: int
) -> tuple[dict[str, float], list[float]]:
    """Ask for all pages some times over: milliseconds of each page, MiB after each round."""
    nothing: Any = None

    async def ready() -> None:
        pass

    runs = Runs(
        store=store, pools=nothing, broker=nothing, artifacts=artifacts, settings=Settings()
    )
    trainer = httpx.ASGITransport(trainer_app(runs=runs, orchestrator=None, ready=ready))
    apis = Apis({"trainer": "http://trainer", "env_adapter": "http://trainer"}, transport=trainer)
    browser = httpx.ASGITransport(dashboard_app(apis=apis))
    spent: dict[str, list[float]] = {name: [] for name in wanted}
    memory = []
    async with httpx.AsyncClient(transport=browser, base_url="http://dashboard") as client:
        for number in range(rounds + 1):
            for name, address in wanted.items():
                started = time.process_time()
                (await client.get(address)).raise_for_status()
                if number:  # the first loads what is needed
                    spent[name].append((time.process_time() - started) * 1e3)
            memory.append(rss_mib(os.getpid()))
    await apis.close()
    return {name: statistics.median(own) for name, own in spent.items()}, memory


def main() -> int:
    """Measure; returns 1 if a page takes longer, by the processor's time, than a reader should wait."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="20 steps instead of 1,000")
    parser.add_argument("--rounds", type=int, default=7, help="requests of each page")
    options = parser.parse_args()
    steps = 20 if options.small else 1000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        database = open_database(f"sqlite:///{folder}/bench.sqlite")
        store, artifacts = RunStore(database), ArtifactStore(str(folder / "artifacts"))
        model = words_folder(folder / "model", [f"w{n}" for n in range(500)])
        runs, commits = fill(store, artifacts, model, steps)
        found = pages(store, artifacts, addresses(runs, steps), options.rounds)
        spent, memory = asyncio.run(found)
        database.close()
        size = (folder / "bench.sqlite").stat().st_size / 2**20
    print(machine())
    print(f"{steps * ROLLOUTS} trajectories, {size:.0f} MiB")
    for what, value in (commits | spent).items():
        print(f"{what:28} {value:8.1f} ms")
    print("MiB after each round:", *(f"{mib:.0f}" for mib in memory))
    slow = [name for name, value in spent.items() if value > WANTED_MS]
    if slow:
        print(f"slower than {WANTED_MS:.0f} ms: {', '.join(slow)}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
