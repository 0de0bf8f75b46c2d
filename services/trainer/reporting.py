"""Committed steps on dashboards: TensorBoard's event files, Weights & Biases.

They are read from the database: what a dashboard has missed, because the orchestrator died or was somewhere else, it gets
when the run is taken up. A dashboard that fails costs the run nothing but a line in the log.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from triforge.config import RunConfig
from triforge.errors import ConfigError, install_command
from triforge.store.artifacts import ArtifactStore
from triforge.types import RunState, RunStep

_log = logging.getLogger(__name__)

_PATIENCE_S = 120.0  # opening a run over a slow line takes long; a step must not wait for ever


class Dashboard(Protocol):
    """Something that shows steps from `first` on, in order. Its calls may block; whatever it raises ends it for this run."""

    first: int

    def show(self, step: RunStep) -> None:
        """Show a step."""
        ...

    def close(self) -> None:
        """The run has ended, or goes on elsewhere."""
        ...


class TensorBoard:
    """Event files in a folder of this run alone. What lies there is superseded: a reader sees each step once."""

    def __init__(self, folder: Path) -> None:
        module: Any = importlib.import_module("tensorboardX")
        self._writer = module.SummaryWriter(logdir=str(folder), purge_step=0)
        self.first = 0  # the new file takes the place of older ones
        self.close = self._writer.close

    def show(self, step: RunStep) -> None:
        """One scalar a measure."""
        for name, value in _measures(step).items():
            self._writer.add_scalar(name, value, global_step=step.step, walltime=step.at)
        self._writer.flush()


class WeightsAndBiases:
    """A run of Weights & Biases under the run's own id; a run that is taken up again goes on there."""

    def __init__(self, run: RunState, config: RunConfig, folder: Path) -> None:
        module: Any = importlib.import_module("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        self._run = module.init(
            project=config.report.wandb_project,
            entity=config.report.wandb_entity or None,
            id=run.id,
            name=run.name or run.id,
            resume="allow",
            mode=config.report.wandb_mode,
            dir=str(folder),
            config=config.model_dump(mode="json"),
            settings=module.Settings(silent=True, console="off"),
        )
        self.first = int(self._run.step or 0)  # it refuses steps that it has already
        self.close = self._run.finish

    def show(self, step: RunStep) -> None:
        """All measures at once."""
        self._run.log(_measures(step), step=step.step, commit=True)


def _measures(step: RunStep) -> dict[str, float]:
    versions = {"version/policy": step.policy_version, "version/reward": step.reward_version}
    finite = {name: value for name, value in step.metrics.items() if math.isfinite(value)}
    return finite | {name: float(version) for name, version in versions.items()}


class Reporting:
    """The dashboards of one run. They are made, in a thread, when there is something to show.

    `steps` gives the committed steps after a step. A dashboard that takes longer than `patience_s` for one call is dropped;
    its thread is left behind.
    """

    def __init__(
        self,
        dashboards: Sequence[Callable[[], Dashboard]] = (),
        steps: Callable[[int], Sequence[RunStep]] = lambda _: (),
        *,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._make, self._steps, self._patience_s = list(dashboards), steps, patience_s
        self._open: list[Dashboard] = []

    @staticmethod
    def of(
        run: RunState,
        config: RunConfig,
        artifacts: ArtifactStore,
        steps: Callable[[int], Sequence[RunStep]],
    ) -> Reporting:
        """What the run's config asks for."""
        make: list[Callable[[], Dashboard]] = []
        if config.report.tensorboard:
            make.append(lambda: TensorBoard(artifacts.local_path(f"runs/{run.id}/tensorboard")))
        if config.report.wandb_project:
            name, beside = f"runs/{run.id}", Path(tempfile.gettempdir()) / "triforge"
            folder = artifacts.local_path(name) if artifacts.is_local else beside / name
            make.append(lambda: WeightsAndBiases(run, config, folder))
        return Reporting(make, steps)

    async def update(self) -> None:
        """Show every dashboard the committed steps that it has not."""
        while self._make:
            made = await self._guarded(self._make.pop(0))
            self._open += [] if made is None else [made]
        for dashboard in list(self._open):
            if not await self._guarded(lambda d=dashboard: self._show(d)):  # type: ignore[misc]
                self._open.remove(dashboard)
                await self._guarded(dashboard.close)

    async def close(self) -> None:
        """The run has ended or is put down."""
        for dashboard in self._open:
            await self._guarded(dashboard.close)
        self._open = []

    def _show(self, dashboard: Dashboard) -> bool:
        for step in self._steps(dashboard.first - 1):
            dashboard.show(step)
            dashboard.first = step.step + 1
        return True

    async def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return await asyncio.wait_for(asyncio.to_thread(work), self._patience_s)
        except Exception as error:  # noqa: BLE001 (the border: a dashboard must not cost a run anything)
            _log.warning("a dashboard is dropped: %s: %s", type(error).__name__, error)
            return None


def demand_packages(config: RunConfig, artifacts: ArtifactStore) -> None:
    """Refuse what could only fail later.

    Raises:
        ConfigError: a dashboard's package is not installed, or event files have no folder to lie in.
    """
    report = config.report
    wanted = (
        ("tensorboard", "tensorboardX", report.tensorboard),
        ("wandb_project", "wandb", bool(report.wandb_project)),
    )
    for option, module, asked in wanted:
        if asked and importlib.util.find_spec(module) is None:
            extra = option.removesuffix("_project")
            raise ConfigError(
                f"report.{option}: {module} is not installed beside the trainer; {install_command(extra)} there, or "
                "leave it out"
            )
    if report.tensorboard and not artifacts.is_local:
        raise ConfigError(
            f"report.tensorboard: given an artifact store at {artifacts.root}, expected a local folder for event files"
        )
