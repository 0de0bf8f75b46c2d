"""The options of a run that adaptation reads, from the run's stored document: one worker serves many runs."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field

from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.config import AdaptationSection, EnvAdapterSection, RunConfig, Sampling, parse
from triforge.errors import NotFoundError
from triforge.store.database import Database
from triforge.store.tables import RunRow
from triforge.types import Message, TaskOutcome


class AdaptSettings(Message):
    """The sections of a run that adaptation reads.

    `sampling` is the rewriter's. `version_gap` is how far the policy versions of one pair may lie apart. `controller_options`
    are those of the method that the controller belongs to.
    """

    adaptation: AdaptationSection = AdaptationSection()
    algorithm: Algorithm = Field(default_factory=lambda: resolve("rlanything"))
    env_adapter: EnvAdapterSection = EnvAdapterSection()
    sampling: Sampling = Sampling(max_new_tokens=256)
    version_gap: Annotated[int, Field(ge=0)] = 0
    controller_options: Any = None

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Select the settings from the options of a run."""
        gap, method = config.adaptation.max_version_gap, config.adaptation.method
        return cls(
            adaptation=config.adaptation,
            algorithm=config.algorithm.resolved,
            env_adapter=config.env_adapter,
            sampling=config.models.rewriter.sampling(),
            version_gap=config.run.staleness_bound if gap is None else gap,
            controller_options=config.methods_used[method] if method else None,
        )


class RunOutcome(TaskOutcome):
    """The outcome of a group with the settings of its run."""

    settings: AdaptSettings = Field(default_factory=AdaptSettings)

    @classmethod
    def of(cls, outcome: TaskOutcome, settings: AdaptSettings) -> Self:
        """Add settings to an outcome."""
        return cls(**dict(outcome), settings=settings)


class RunSettings:
    """Reads the settings of runs. A run's options never change, so each run is read once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, AdaptSettings] = {}

    def read(self, run_id: str) -> AdaptSettings:
        """Return the settings of a run; raise NotFoundError if there is no such run."""
        if run_id not in self._known:
            with self._database.read() as session:
                row = session.get(RunRow, run_id)
                if row is None:
                    raise NotFoundError(f"run {run_id!r} does not exist; its outcome is dropped")
                self._known[run_id] = AdaptSettings.of(parse(row.config))
        return self._known[run_id]
