"""Experiment trackers, each through its own package: TensorBoard, Weights & Biases."""

from __future__ import annotations

import importlib
import importlib.util
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from triforge.config import RunConfig
from triforge.errors import ConfigError, install_command
from triforge.store.artifacts import ArtifactStore
from triforge.types import RunState, RunStep

EXTRAS: Final[Mapping[str, str]] = {  # the option that asks for an extra's module
    "tensorboard": "tensorboardX",
    "wandb_project": "wandb",
}
Rollout = Mapping[str, Any]


class Tracker(Protocol):
    """Something that shows steps from `first` on, in order. Its calls may block; whatever it raises ends it for this run."""

    first: int

    def show(self, step: RunStep, rollouts: Sequence[Rollout]) -> None:
        """Show a step with some of its rollouts, as `triforge.store.step_records.read_rollouts` gives them."""
        ...

    def close(self, status: str) -> None:
        """The run has ended with a status, or without one goes on elsewhere."""
        ...


class TensorBoard:
    """Event files in a folder of this run alone. What lies there is superseded: a reader sees each step once."""

    def __init__(self, folder: Path) -> None:
        module: Any = importlib.import_module("tensorboardX")
        self._writer = module.SummaryWriter(logdir=str(folder), purge_step=0)
        self.first = 0  # the new file takes the place of older ones
        self.close = lambda _: self._writer.close()

    def show(self, step: RunStep, rollouts: Sequence[Rollout]) -> None:
        """One scalar a measure, the rollouts as a text."""
        at = {"global_step": step.step, "walltime": step.at}
        for name, value in _measures(step).items():
            self._writer.add_scalar(name, value, **at)
        if rollouts:
            self._writer.add_text("rollouts", _code(rollouts), **at)
        self._writer.flush()


class WeightsAndBiases:
    """A run of Weights & Biases under the run's own id; a run that is taken up again goes on there."""

    def __init__(self, run: RunState, config: RunConfig, folder: Path) -> None:
        self._module: Any = importlib.import_module("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        self._run = self._module.init(
            project=config.report.wandb_project,
            entity=config.report.wandb_entity or None,
            id=run.id,
            name=run.name or run.id,
            resume="allow",
            mode=config.report.wandb_mode,
            dir=str(folder),
            config=config.model_dump(mode="json"),
            settings=self._module.Settings(silent=True, console="off"),
        )
        self.first = int(self._run.step or 0)  # it refuses steps that it has already
        self.close = lambda status: self._run.finish(exit_code=int(status == "failed"))

    def show(self, step: RunStep, rollouts: Sequence[Rollout]) -> None:
        """All measures at once, the rollouts as a table."""
        logged: dict[str, Any] = {**_measures(step)}
        if rollouts:
            rows = [[*rollout.values()] for rollout in rollouts]
            logged["rollouts"] = self._module.Table(columns=[*rollouts[0]], data=rows)
        self._run.log(logged, step=step.step, commit=True)


def _measures(step: RunStep) -> dict[str, float]:
    versions = {f"version/{role}": version for role, version in step.versions.items()}
    finite = {name: value for name, value in step.metrics.items() if math.isfinite(value)}
    return finite | {name: float(version) for name, version in versions.items()}


def _code(rollouts: Sequence[Rollout]) -> str:
    """Rollouts in Markdown, as code: what a model writes is neither a link nor a picture."""
    texts = ("\n".join(f"{name}: {said}" for name, said in own.items()) for own in rollouts)
    return "\n".join(f"    {line}" for line in "\n\n".join(texts).splitlines())


def trackers_of(
    run: RunState, config: RunConfig, artifacts: ArtifactStore
) -> list[Callable[[], Tracker]]:
    """What makes the trackers that a run's config asks for."""
    report, name = config.report, f"runs/{run.id}"
    make: list[Callable[[], Tracker]] = []
    if report.tensorboard:
        make.append(lambda: TensorBoard(artifacts.local_path(f"{name}/tensorboard")))
    if report.wandb_project:
        beside = Path(tempfile.gettempdir()) / "triforge" / name
        folder = artifacts.local_path(name) if artifacts.is_local else beside
        make.append(lambda: WeightsAndBiases(run, config, folder))
    return make


def demand_packages(config: RunConfig, artifacts: ArtifactStore) -> None:
    """Refuse what could only fail later.

    Raises:
        ConfigError: a tracker's package is not installed, or event files have no folder to lie in.
    """
    for option, module in EXTRAS.items():
        if getattr(config.report, option) and importlib.util.find_spec(module) is None:
            extra = option.partition("_")[0]
            raise ConfigError(
                f"report.{option}: {module} is not installed beside the trainer; {install_command(extra)} there, or "
                "leave it out"
            )
    if config.report.tensorboard and not artifacts.is_local:
        raise ConfigError(
            f"report.tensorboard: given an artifact store at {artifacts.root}, expected a local folder for event files"
        )
