"""Experiment trackers, each through its own package: TensorBoard, Weights & Biases, trackio, MLflow."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
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
    "trackio_project": "trackio",
    "mlflow_experiment": "mlflow",
}
_AT_ONCE: Final = 999  # measures that MLflow takes in a request, beside a tag
_STATUS: Final = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_TAG: Final = "triforge.run"
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


class Trackio:
    """A run of trackio under the run's own id; a run that is taken up again goes on there."""

    def __init__(self, run: RunState, config: RunConfig) -> None:
        self._module: Any = importlib.import_module("trackio")
        self._run = self._module.init(
            project=config.report.trackio_project,
            name=run.id,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
            config=config.model_dump(mode="json") | {"name": run.name},
        )
        self.first = int(self._run._next_step)
        self.close = lambda _: self._run.finish()

    def show(self, step: RunStep, rollouts: Sequence[Rollout]) -> None:
        """All measures at once, the rollouts as a text in Markdown."""
        logged: dict[str, Any] = {**_measures(step)}
        if rollouts:
            logged["rollouts"] = self._module.Markdown(_code(rollouts))
        self._run.log(logged, step=step.step)


class Mlflow:
    """A run of MLflow that has the run's id as a tag; where the server is says `MLFLOW_TRACKING_URI`."""

    def __init__(self, run: RunState, config: RunConfig) -> None:
        self._module: Any = importlib.import_module("mlflow")
        self._client = self._module.MlflowClient()
        name = config.report.mlflow_experiment
        known = self._client.get_experiment_by_name(name)
        home = known.experiment_id if known else self._client.create_experiment(name)
        found = self._client.search_runs([home], filter_string=f"tags.`{_TAG}` = '{run.id}'")
        self._run = found[0] if found else self._begun(home, run, config)
        self._client.update_run(self._run.info.run_id, status="RUNNING")
        self.first = int(self._run.data.tags.get("triforge.steps", 0))

    def _begun(self, home: str, run: RunState, config: RunConfig) -> Any:
        begun = self._client.create_run(home, tags={_TAG: run.id}, run_name=run.name or run.id)
        self._client.log_dict(begun.info.run_id, config.model_dump(mode="json"), "config.json")
        return begun

    def show(self, step: RunStep, rollouts: Sequence[Rollout]) -> None:
        """The rollouts as a table in a JSON file, then all measures and, in one request with the last of them, which step comes next."""
        mine, at = self._run.info.run_id, round(step.at * 1e3)
        metrics = [
            self._module.entities.Metric(re.sub(r"[^\w./ -]", "_", name), value, at, step.step)
            for name, value in _measures(step).items()
        ]
        if rollouts:
            table = {
                "columns": [*rollouts[0]],
                "data": [[*rollout.values()] for rollout in rollouts],
            }
            self._client.log_dict(mine, table, f"rollouts/{step.step:05d}.json")
        following = self._module.entities.RunTag("triforge.steps", str(step.step + 1))
        for start in range(0, len(metrics), _AT_ONCE):
            part = metrics[start : start + _AT_ONCE]
            tags = [following] if start + _AT_ONCE >= len(metrics) else []
            self._client.log_batch(mine, metrics=part, tags=tags)

    def close(self, status: str) -> None:
        """It has ended as the run has, until that is taken up again."""
        if status in _STATUS:
            self._client.set_terminated(self._run.info.run_id, _STATUS[status])


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
    if report.trackio_project:
        make.append(lambda: Trackio(run, config))
    if report.mlflow_experiment:
        make.append(lambda: Mlflow(run, config))
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
