"""`python -m demo.prepare`: the models of the demo and the document that names them, for a deployment of one's own."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from demo import warm_start
from demo.models.household_judge import household_judge
from demo.settings import ROOT, DemoSettings, sparse
from triforge.cli.model_folders import cache_folder
from triforge.config import load, merge, read_document, with_assignments, write_document
from triforge.errors import ConfigError, TriforgeError

# one of them lies in every folder that a demo made
CONFIGS = ("demo.toml", "demo-smollm2.toml", "demo-agent.toml")


def prepare(
    settings: DemoSettings,
    state: Path,
    tell: Callable[[str], None],
    *,
    smollm2: bool = False,
    assignments: Sequence[str] = (),
) -> Path:
    """Make the models, or find them in the cache, and write the run's document; returns its path.

    The folders `policy`, `reward` and `rewriter` next to it are links to the models.

    Args:
        smollm2: SmolLM2 as policy and judge instead of the tiny models.

    Raises:
        ConfigError: `state` holds something else, or an assignment is impossible.
    """
    name = CONFIGS[smollm2]
    clear(state)
    tell(f"models are kept in {cache_folder()}; everything else goes to {state}")
    fetched = warm_start.smollm2(tell)
    tiny = None if smollm2 else warm_start.tiny_models(settings, tell)
    rewriter = fetched()
    policy, judge = tiny or (rewriter, rewriter)
    if tiny and settings.warm_start.judge is None:
        judge = household_judge()
    models = {"policy": policy, "reward": judge, "rewriter": rewriter}
    state.mkdir(parents=True, exist_ok=True)
    for role, folder in models.items():  # a fixed name for each, for who starts the engines
        (state / role).symlink_to(os.path.relpath(folder, state))
    paths = {"models": {role: {"path": str(folder)} for role, folder in models.items()}}
    document = merge(read_document(ROOT / "configs" / name), paths)
    write_document(state / name, with_assignments(document, assignments))
    load(state / name)
    return state / name


def clear(state: Path) -> None:
    """Delete what an earlier demo left in its folder.

    Raises:
        ConfigError: the folder holds something that no demo made.
    """
    if not state.exists():
        return
    if not state.is_dir() or (
        any(state.iterdir()) and not any((state / name).is_file() for name in CONFIGS)
    ):
        raise ConfigError(
            f"--state: given {state}, which holds something else, expected a new folder or that of an earlier demo, "
            "which is emptied first"
        )
    shutil.rmtree(state, ignore_errors=True)


def settings_of(seed: int, *, smollm2: bool = False) -> DemoSettings:
    """Return the settings of a demo with tiny models, or with SmolLM2 as policy and judge."""
    if smollm2:
        return DemoSettings(
            seed=seed, train_tasks=24, heldout_tasks=4,
            generate={"receptacles": [3, 4], "distractors": [0, 1], "goals": ["place"]}, options={"wording": "alfworld"},
        )  # fmt: skip
    return sparse(seed)


def main(arguments: list[str] | None = None) -> int:
    """Prepare, start nothing; prints the document's path and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo.prepare", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of tasks and warm start")
    parser.add_argument("--state", type=Path, required=True, help="folder of the document")
    options = parser.parse_args(arguments)

    def tell(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    try:
        path = prepare(settings_of(options.seed), options.state.resolve(), tell)
    except TriforgeError as error:
        tell(f"prepare: {error.detail}")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
