"""A run's model and rollouts as repositories of the Hugging Face hub."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triforge.cli.models import save_model
from triforge.errors import ConfigError, install_command
from triforge.types import RunState, RunStep, WeightsRecord

_FACTS = ("eval/sampled", "eval/greedy", "success", "score", "judge/balanced")


def write(to: Path, run: RunState, steps: list[RunStep], row: WeightsRecord, record: Path) -> None:
    """Write `to/model` with its card and `to/dataset`; InputError if the folder is there, or the weights are elsewhere."""
    from triforge.store import exports  # noqa: PLC0415  pyarrow is slow to import

    save_model(Path(row.uri), to / "model")
    (to / "model" / "README.md").write_text(card(run, steps, row), encoding="utf-8")
    exports.write_dataset(record, to / "dataset")


def card(run: RunState, steps: list[RunStep], row: WeightsRecord) -> str:
    """The model card: what was trained on what, how, and what the steps have measured that end with this version."""
    newest: dict[str, float] = {}
    for step in (s for s in steps if s.versions.get(row.role, 0) <= row.version):
        newest |= {name: step.metrics[name] for name in _FACTS if name in step.metrics}
    facts = {
        "run": f"{run.id} ({run.name})" if run.name else run.id, "pool": run.pool_id, "model": f"{row.role}, version {row.version}",
        "steps": f"{max(run.step, 0)} of {run.steps}", "status": run.status, "algorithm": run.algorithm,
    } | {name: f"{value:.4g}" for name, value in newest.items()}  # fmt: skip
    rows = "\n".join(f"| {name} | {_cell(value)} |" for name, value in facts.items() if value)
    config = json.dumps(run.config, indent=2).replace("```", "` ` `")
    return (
        "---\npipeline_tag: text-generation\ntags:\n- triforge\n- reinforcement-learning\n---\n\n"
        f"# {run.id}, {row.role} version {row.version}\n\n| what | value |\n|---|---|\n{rows}\n\n"
        f"Measures are those of the newest step up to this version that has them.\n\n## Config\n\n```json\n{config}\n```\n"
    )


def _cell(value: str) -> str:
    return " ".join(value.replace("|", "\\|").replace("<", "&lt;").split())


def private(repo: str) -> Callable[[Path], None]:
    """Make the private repositories `repo` and `repo-rollouts`; what comes back uploads a folder into them.

    Raises:
        ConfigError: huggingface_hub is not installed, or one of them exists and is public.
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ModuleNotFoundError:
        said = f"--repo: huggingface_hub is not installed; {install_command('trainer')}"
        raise ConfigError(said) from None
    api = hub.HfApi()
    both = ((repo, "model"), (f"{repo}-rollouts", "dataset"))
    for name, kind in both:
        api.create_repo(name, repo_type=kind, private=True, exist_ok=True)
        if not api.repo_info(name, repo_type=kind).private:  # it existed
            raise ConfigError(
                f"--repo: {name} exists and is public, expected a private or a new one"
            )

    def push(folder: Path) -> None:
        for name, kind in both:
            api.upload_folder(repo_id=name, repo_type=kind, folder_path=str(folder / kind))

    return push
