"""Checks of a run's options against its pool, before the run begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from triforge.config import RunConfig, RunSection, merge, parse
from triforge.errors import ConfigError, TriforgeError
from triforge.types import JudgedGroup, PoolState

_GROUPS: Final = RunSection().groups_per_step


def config_on(pool: PoolState, base: Mapping[str, Any], over: Mapping[str, Any]) -> RunConfig:
    """Return the config of a run: the pool's options replace those of the document `base`, and `over` replaces both.

    The default number of groups of a step is at most the number of training tasks.
    """
    fewer = {"run": {"groups_per_step": min(_GROUPS, max(1, _training_tasks(pool)))}}
    described = merge(merge(fewer, base), {"env_adapter": {"options": pool.options}})
    return parse(merge(described, over))


def demand_trainable(config: RunConfig, pool: PoolState) -> None:
    """Raise a ConfigError if the pool has too few tasks for a step, or not the kind of tasks that the run needs."""
    groups, there = config.run.groups_per_step, _training_tasks(pool)
    if config.run.steps and groups > there:
        raise ConfigError(
            f"run.groups_per_step: given {groups}, the pool {pool.name!r} has {there} training tasks, expected at most one group "
            "a task: lower it, or make a pool of more tasks"
        )
    if config.adaptation.chosen.needs_levels and not pool.levelled:
        raise ConfigError(
            f"adaptation.controller: given {config.adaptation.controller!r} for the pool {pool.name!r} of {pool.environment!r}, "
            "allowed 'llm_rewrite' or 'none': its tasks have no difficulty levels (`at_level` of the family)"
        )
    kind, scorer = config.reward.kind, config.reward.chosen
    if scorer.needs_programs and not pool.programs:
        raise ConfigError(
            f"reward.kind: given {kind!r} for the pool {pool.name!r} of {pool.environment!r}, allowed 'votes': its tasks are not "
            "solved by programs that tests could run on"
        )
    if scorer.needs_labels and not pool.labelled:
        raise ConfigError(
            f"reward.kind: given {kind!r} for the pool {pool.name!r} of {pool.environment!r}, allowed 'votes', 'shuffled' or "
            "'log_ratio': its environments do not label their steps"
        )
    if pool.scored and config.env_adapter.options.get("success_at") is None:
        demand_success(config, pool.environment)


def demand_criteria(config: RunConfig, pool: PoolState) -> None:
    """Raise a ConfigError if judges are to be shown what no task of the pool has, as far as that is known."""
    missing = {"rubric", "reference"}.intersection(config.reward.shows) - {*(pool.shown or ())}
    if pool.shown is not None and missing:
        raise ConfigError(
            f"reward.shows: given {', '.join(map(repr, sorted(missing)))} for the pool {pool.name!r} of {pool.environment!r}, whose "
            "tasks have none that can be read: a row of `prompts` has them in its columns `rubric` (text with a point a line, or a list "
            "of texts and of objects with `text` and `weight`) and `reference` (text), a family in `criteria` or `gold` "
            "(docs/environments.md); or leave them out"
        )


def unplayable(pool: PoolState, error: TriforgeError) -> ConfigError:
    """Make the error for options of a run that the pool's family refuses."""
    return ConfigError(
        f"env_adapter.options: the pool {pool.name!r} cannot be played: {error.detail}. An option of the run "
        "replaces the pool's, and the pool's that of the deployment's document; `triforge train --state OTHER` starts another "
        "deployment, and so does the same command once this one has stopped"
    )


def _training_tasks(pool: PoolState) -> int:
    train = pool.tasks.get("train", {})
    return train.get("active", 0) + train.get("paused", 0)


def demand_success(config: RunConfig, environment: str) -> None:
    """Raise a ConfigError if an option of the run needs success, which `environment` does not report."""
    algorithm, controller = config.algorithm.resolved, config.adaptation.controller
    own = (config.algorithm_of(role).needs_success for role in config.models.players)
    read = next(filter(None, own), "")  # by one of the models that play
    needs = read and f"algorithm {algorithm.name!r} ({read})"
    reading = (m.name for m, options in config.methods_used.items() if options.reads_success)
    needs = needs or "".join(f"methods.{name}" for name in [*reading][:1])
    if needs or config.adaptation.adapts:
        raise ConfigError(
            f"{needs or f'adaptation.controller = {controller!r}'}: given for {environment!r}, whose episodes have scores and no "
            "threshold of success; set one (env_adapter.options.success_at, or success_at of the family), or "
            "train on scores alone: algorithm.preset = 'grpo', adaptation.controller = 'none'"
        )


def demand_known_success(config: RunConfig, groups: Iterable[JudgedGroup]) -> None:
    """Raise as `demand_success` for the first group with an episode that has a score and no known success."""
    for played in (group.played for group in groups):
        if any(t.measured and t.outcome.value is None for t in played.trajectories):
            demand_success(config, played.task.family)
