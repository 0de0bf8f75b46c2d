"""`python -m experiments.judge`: make the judge of `demo/judge/` again, from demonstrations and runs of tuning seeds (an hour of one core)."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch

from demo.models.household_judge import keep
from demo.warm_start import judge_of, tiny_models
from experiments.judge_data import JUDGE
from experiments.loop import play
from experiments.record import Models
from experiments.sparse import ARMS, TUNING_SEEDS, SparseSettings
from triforge.cli.model_folders import cache_folder

TEACHERS: Final = ("O_index", "planted", "planted_90")
"""The arms of `sparse` whose rollouts teach it, played by the policies of four tuning seeds."""

SEEDS: Final = TUNING_SEEDS[:4]
_PROCESSES: Final = 2


def rollouts(arm: str, seed: int) -> Path:
    """Play an arm with the policy of a seed; return the file of its labelled rollouts."""
    torch.set_num_threads(1)
    settings = SparseSettings()
    path = cache_folder() / "experiments" / f"rollouts-{arm}-{seed}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    policy, unasked = tiny_models(settings.warm_start(seed), _say)
    play(arm, ARMS[arm], seed, settings, Models(policy, unasked, None), labelled=path)
    _say(f"{arm}, seed {seed}: {path}")
    return path


def main() -> int:
    """Play, train, and take the judge as the one that is begun with."""
    pairs = list(product(TEACHERS, SEEDS))
    with ProcessPoolExecutor(_PROCESSES, mp_context=get_context("spawn")) as pool:
        files = list(pool.map(rollouts, *zip(*pairs, strict=True)))
    start = replace(SparseSettings().warm_start(SEEDS[0]), warm_start=JUDGE)
    with TemporaryDirectory() as folder:
        steps, loss, right = judge_of(start, files, Path(folder) / "judge")["eval"][-1]
        _say(f"judge: after {steps} updates {right:.3f} right on held-out votes, loss {loss:.3f}")
        keep(Path(folder) / "judge")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
