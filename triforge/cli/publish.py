"""A run's model and rollouts as repositories of the Hugging Face hub."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from triforge.cli.models import save_model, version_of
from triforge.clients.trainer import TrainerClient
from triforge.errors import ConfigError, InputError, install_command
from triforge.types import RunState, RunStep, TrainedRole, WeightsRecord

_FACTS = ("eval/sampled", "eval/greedy", "success", "score", "judge/balanced")


@dataclass(frozen=True, slots=True)
class Published:
    """What the hub is to have: a version of a run's model, and the file of its record."""

    run: RunState
    steps: list[RunStep]
    weights: WeightsRecord
    record: Path

    @classmethod
    async def read(
        cls,
        client: TrainerClient,
        run_id: str,
        role: TrainedRole,
        version: int | None,
        record: Path,
    ) -> Self:
        """Ask for a version, the newest if none is named, and save the record at `record`; ConflictError if the run goes on."""
        weights = await version_of(client, run_id, role, version)
        run, steps = await client.run(run_id), await client.steps(run_id)
        await client.export(run_id, record)
        return cls(run, steps, weights, record)

    def write(self, to: Path) -> None:
        """Write `to/model` with its card and `to/dataset`; InputError if the folder is there, or the weights are elsewhere."""
        from triforge.store import exports  # noqa: PLC0415  pyarrow is slow to import

        if to.exists():
            raise InputError(f"--to: given {to}, which exists; expected a new folder")
        to.mkdir(parents=True)
        save_model(Path(self.weights.uri), to / "model")
        text = card(self.run, self.steps, self.weights)
        (to / "model" / "README.md").write_text(text, encoding="utf-8")
        exports.write_dataset(self.record, to / "dataset")


def card(run: RunState, steps: list[RunStep], row: WeightsRecord) -> str:
    """The model card: what was trained on what, how, and what the newest steps have measured."""
    newest: dict[str, float] = {}
    for step in steps:
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
        f"Measures are those of the newest step that has them.\n\n## Config\n\n```json\n{config}\n```\n"
    )


def _cell(value: str) -> str:
    return " ".join(value.replace("|", "\\|").replace("<", "&lt;").split())


def push(folder: Path, repo: str) -> None:
    """Upload such a folder into private repositories: `repo`, and `repo-rollouts` of its dataset.

    Raises:
        ConfigError: huggingface_hub is not installed.
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ModuleNotFoundError:
        raise ConfigError(
            f"--repo: huggingface_hub is not installed; {install_command('trainer')}"
        ) from None
    api = hub.HfApi()
    for name, kind, part in ((repo, "model", "model"), (f"{repo}-rollouts", "dataset", "dataset")):
        api.create_repo(name, repo_type=kind, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, repo_type=kind, folder_path=str(folder / part))
