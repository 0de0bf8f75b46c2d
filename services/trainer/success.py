"""What has to know which episodes succeed is refused where an environment gives scores and nobody states a threshold."""

from __future__ import annotations

from collections.abc import Iterable

from triforge.config import RunConfig
from triforge.errors import ConfigError
from triforge.types import JudgedGroup


def demand_success(config: RunConfig, environment: str) -> None:
    """Raise a ConfigError if anything of the run reads success, which `environment` does not tell."""
    algorithm, controller = config.algorithm.resolved, config.adaptation.controller
    needs = algorithm.needs_success and f"algorithm {algorithm.name!r} ({algorithm.needs_success})"
    if needs or controller != "none":
        raise ConfigError(
            f"{needs or f'adaptation.controller = {controller!r}'}: given for {environment!r}, whose episodes have scores and no "
            "threshold from which they are successes; state one (env_adapter.options.success_at, or success_at of the family), or "
            "train on scores alone: algorithm.preset = 'grpo', adaptation.controller = 'none'"
        )


def demand_known_success(config: RunConfig, groups: Iterable[JudgedGroup]) -> None:
    """Raise as `demand_success` for the first group with an episode that has a score and no known success."""
    for played in (group.played for group in groups):
        if any(t.measured and t.outcome.value is None for t in played.trajectories):
            demand_success(config, played.task.family)
