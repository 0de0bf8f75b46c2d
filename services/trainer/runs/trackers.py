"""Experiment trackers: committed steps in TensorBoard's event files and in Weights & Biases, each through its own package.

Steps are read from the database: a tracker gets those that it has missed when the run is resumed. The failure of a tracker is
logged and costs the run nothing else.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from triforge.config import RunConfig
from triforge.errors import ConfigError, install_command
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import read_rollouts
from triforge.types import RunState, RunStep

_log = logging.getLogger(__name__)

_PACKAGES: Final[Mapping[str, str]] = {  # by the option that needs it
    "tensorboard": "tensorboardX",
    "wandb_project": "wandb",
}
_PATIENCE_S = 120.0  # opening a run over a slow line takes long; a step must not wait for ever
Rollout = Mapping[str, Any]


class Tracker(Protocol):
    """A tracker that takes steps from `first` on, in order. Its calls may block; an exception ends it for this run."""

    first: int

    def show(self, step: RunStep, rollouts: Sequence[Rollout]) -> None:
        """Log a step with some of its rollouts, as `triforge.store.step_records.read_rollouts` returns them."""
        ...

    def close(self, status: str) -> None:
        """Close the run, which has ended with a status, or without one goes on elsewhere."""
        ...


class TensorBoard:
    """Event files in a folder of this run alone. A new file supersedes the older ones: a reader sees each step once."""

    def __init__(self, folder: Path) -> None:
        module: Any = importlib.import_module("tensorboardX")
        self._writer = module.SummaryWriter(logdir=str(folder), purge_step=0)
        self.first = 0
        self.close = lambda _: self._writer.close()

    def show(self, step: RunStep, rollouts: Sequence[Rollout]) -> None:
        """Write one scalar a measure, the rollouts as a text."""
        at = {"global_step": step.step, "walltime": step.at}
        for name, value in _measures(step).items():
            self._writer.add_scalar(name, value, **at)
        if rollouts:
            texts = ("\n".join(f"{name}: {v}" for name, v in one.items()) for one in rollouts)
            # indented, so that Markdown shows it as code: a model's text makes no links and no pictures
            code = "\n".join(f"    {line}" for line in "\n\n".join(texts).splitlines())
            self._writer.add_text("rollouts", code, **at)
        self._writer.flush()


class WeightsAndBiases:
    """A run of Weights & Biases under the run's own id; a resumed run goes on there."""

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
        self.first = int(self._run.step or 0)  # it rejects steps that it has already
        self.close = lambda status: self._run.finish(exit_code=int(status == "failed"))

    def show(self, step: RunStep, rollouts: Sequence[Rollout]) -> None:
        """Log all measures at once, the rollouts as a table."""
        logged: dict[str, Any] = {**_measures(step)}
        if rollouts:
            rows = [[*rollout.values()] for rollout in rollouts]
            logged["rollouts"] = self._module.Table(columns=[*rollouts[0]], data=rows)
        self._run.log(logged, step=step.step, commit=True)


class Reporting:
    """The trackers of one run. They are opened, in a thread, when there is a step to show.

    `steps` returns the committed steps after a step, `rollouts` some of a step. A tracker that takes longer than `patience_s` for
    one step is dropped; its thread is left behind.
    """

    def __init__(
        self,
        trackers: Sequence[Callable[[], Tracker]] = (),
        steps: Callable[[int], Sequence[RunStep]] = lambda _: (),
        rollouts: Callable[[RunStep], Sequence[Rollout]] = lambda _: (),
        *,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._make, self._steps, self._patience_s = list(trackers), steps, patience_s
        self._rollouts = rollouts
        self._open: list[Tracker] = []

    @staticmethod
    def of(
        run: RunState,
        config: RunConfig,
        artifacts: ArtifactStore,
        steps: Callable[[int], Sequence[RunStep]],
    ) -> Reporting:
        """Return the trackers that the run's config names."""
        report, name = config.report, f"runs/{run.id}"
        make: list[Callable[[], Tracker]] = []
        if report.tensorboard:
            make.append(lambda: TensorBoard(artifacts.local_path(f"{name}/tensorboard")))
        if report.wandb_project:
            temporary = Path(tempfile.gettempdir()) / "triforge" / name
            folder = artifacts.local_path(name) if artifacts.is_local else temporary
            make.append(lambda: WeightsAndBiases(run, config, folder))

        def rollouts(step: RunStep) -> list[dict[str, Any]]:
            uri = step.artifacts.get("step_record")
            return read_rollouts(artifacts, uri, report.rollouts) if uri and report.rollouts else []

        return Reporting(make, steps, rollouts)

    async def update(self) -> None:
        """Show every tracker the committed steps that it does not have."""
        while self._make:
            tracker = await self._guarded(self._make.pop(0))
            self._open += [] if tracker is None else [tracker]
        for tracker in list(self._open):
            if not await self._updated(tracker):
                self._open.remove(tracker)
                await self._guarded(tracker.close, "")

    async def close(self, status: str = "") -> None:
        """Close the trackers: the run has ended with a status, or without one goes on elsewhere."""
        for tracker in self._open:
            await self._guarded(tracker.close, status)
        self._open = []

    async def _updated(self, tracker: Tracker) -> bool:
        """Return whether a tracker took all steps that it missed."""
        missed = await self._guarded(self._steps, tracker.first - 1)
        for step in missed or ():
            if not await self._guarded(self._show, tracker, step):
                return False
        return missed is not None

    def _show(self, tracker: Tracker, step: RunStep) -> bool:
        tracker.show(step, self._rollouts(step))
        tracker.first = step.step + 1
        return True

    async def _guarded(self, work: Callable[..., Any], *given: Any) -> Any:
        try:
            return await asyncio.wait_for(asyncio.to_thread(work, *given), self._patience_s)
        except Exception as error:  # noqa: BLE001 (the border: a tracker must not cost a run anything)
            _log.warning("a tracker is dropped: %s: %s", type(error).__name__, error)
            return None


def _measures(step: RunStep) -> dict[str, float]:
    versions = {f"version/{role}": version for role, version in step.versions.items()}
    finite = {name: value for name, value in step.metrics.items() if math.isfinite(value)}
    return finite | {name: float(version) for name, version in versions.items()}


def require_packages(config: RunConfig, artifacts: ArtifactStore) -> None:
    """Reject trackers whose package is not installed, and event files without a local folder.

    Raises:
        ConfigError: names the option.
    """
    for option, module in _PACKAGES.items():
        if getattr(config.report, option) and importlib.util.find_spec(module) is None:
            extra = option.partition("_")[0]
            raise ConfigError(
                f"report.{option}: {module} is not installed with the trainer; {install_command(extra)} there, or "
                "leave the option out"
            )
    if config.report.tensorboard and not artifacts.is_local:
        raise ConfigError(
            f"report.tensorboard: given an artifact store at {artifacts.root}, expected a local folder for event files"
        )
