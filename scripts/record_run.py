"""`python -m scripts.record_run FOLDER`: the run that tests replay. Three steps of the demo with fewer rollouts and no rewriter."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from demo.prepare import prepare, settings_of
from services.trainer.replay.recording import Recording
from services.trainer.runs.store import RunStore
from triforge.cli.deployment import stores
from triforge.cli.train import train
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import open_database

_FIELDS = (
    "run.steps=3", "run.groups_per_step=4", "run.eval_every=0", "env_adapter.rollouts=4", "reward.votes=2",
    "models.rewriter.path=", "adaptation.controller=none", "trainer.policy.updates_per_step=2",
    "trainer.reward.updates_per_step=2",
)  # fmt: skip


def main(target: Path) -> None:
    """Train, and keep the record without the versions that came of it: a replay comes to them by itself."""
    demo = settings_of(1)
    with tempfile.TemporaryDirectory() as made:
        state = Path(made) / "state"
        config = prepare(demo, state, print, assignments=_FIELDS)
        trained = train(
            env="household", config=config, generate=demo.generate, options=demo.options, tasks=32, heldout=1, seed=1,
            state=state,
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
