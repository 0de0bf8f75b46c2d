"""`python -m scripts.record_run FOLDER`: the run that tests replay. Three steps of small tasks with votes and no rewriter."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from demo.settings import DemoSettings
from demo.warm_start import tiny_models
from services.trainer.replay.recording import Recording
from services.trainer.runs.store import RunStore
from triforge.cli.deployment import stores
from triforge.cli.train import train
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import open_database

_RUN: dict[str, Any] = {
    "run": {"steps": 3, "groups_per_step": 4, "eval_every": 0},
    "models": {
        "policy": {"max_new_tokens": 4},
        "reward": {"temperature": 0.5, "max_new_tokens": 1},
    },
    "env_adapter": {"rollouts": 4, "max_steps": 14},
    "reward": {"votes": 2, "prompt": "terse"},
    "adaptation": {"controller": "none"},
    "trainer": {
        "policy": {"learning_rate": 5e-4, "updates_per_step": 2, "max_tokens": 1024},
        "reward": {"learning_rate": 2e-4, "updates_per_step": 2, "max_tokens": 1024},
    },
    "algorithm": {"preset": "rlanything", "overrides": {"lam": 0.15, "std_floor": 1.0}},
}


def main(target: Path) -> None:
    """Train, and keep the record without the versions that came of it: a replay comes to them by itself."""
    demo = DemoSettings()
    with tempfile.TemporaryDirectory() as made:
        state = Path(made) / "state"
        policy, judge = tiny_models(demo, print)
        trained = train(
            policy, "household", reward_model=str(judge), overrides=_RUN, generate=demo.generate, options=demo.options, tasks=32,
            heldout=1, seed=1, state=state,
        )  # fmt: skip
        found = stores(state)
        store, artifacts = (
            RunStore(open_database(found.database_url)),
            ArtifactStore(found.artifacts_url),
        )
        shutil.rmtree(target, ignore_errors=True)
        Recording.of_run(store, artifacts, trained.run.id).save(target)
    for kind in ("weights", "checkpoints"):
        shutil.rmtree(target / kind)
    # `make fmt` ends texts with a newline; no manifest is to say otherwise
    for role in ("policy", "reward"):
        (target / "models" / role / "manifest.json").unlink()
    sys.stdout.write(f"{target}: {sum(file.stat().st_size for file in target.rglob('*'))} bytes\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
