"""What the services would refuse of a training, asked before any of them is started, of the functions that they ask."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from triforge.cli import pool_file
from triforge.cli.trial import TRIED, demand_taken
from triforge.config import RunConfig, Settings, merge
from triforge.doctor.local import demand_model
from triforge.environments.registry import family, traits
from triforge.environments.rows import read_lines, rows_of
from triforge.environments.tasks import CheckedTasks, check_pool, request_of
from triforge.environments.trainable import config_on, demand_trainable, unplayable
from triforge.errors import ConfigError, InputError, WeightsError
from triforge.types import PoolState


def made_pool(
    name: str, body: dict[str, Any] | Path, environment: str, *, trial: bool
) -> PoolState:
    """A pool as env_adapter would make it, with all its rows looked at; with a `trial` code of the user's own is called, too.

    Raises:
        InputError: the family is unknown, refuses options, rows or what they name, or raises whatever is answered.
        ConfigError: what the family needs is missing.
    """
    with ExitStack() as stack:
        asked = pool_file.request(name, body, environment=environment)
        rows = (
            read_lines(stack.enter_context(body.open("rb")))
            if isinstance(body, Path)
            else rows_of(asked)
        )
        head = request_of(asked)
        checked = stack.enter_context(CheckedTasks())
        given = family(head.environment)
        check_pool(given, head, rows, checked)
        if trial:
            demand_taken(given, [draft for _, draft in islice(checked, TRIED)], head.options)
        tasks = {split: {"active": count} for split, count in checked.splits.items()}
        return PoolState(
            id=name, name=name, environment=head.environment, options=head.options, created_at=0.0, tasks=tasks, proposals={},
            **traits(head.environment),
        )  # fmt: skip


def demand_playable(pool: PoolState, document: Mapping[str, Any]) -> None:
    """Pass a pool that can be played and trained on as the document says; else ConfigError."""
    config = config_on(pool, document, document)
    demand_trainable(config, pool)
    try:
        family(pool.environment).make(merge(pool.options, config.env_adapter.options))
    except (InputError, ConfigError) as error:
        raise unplayable(pool, error) from None


def demand_models(config: RunConfig, settings: Settings) -> None:
    """Pass models that the engines which are to be started, or those that the settings name, and the learners can load."""
    for role, model in config.models:
        if model.path and settings.has(f"{role}_model"):
            engines = settings.engines_of(role)
            try:
                demand_model(Path(model.path), local=not engines)
            except WeightsError as error:
                raise ConfigError(f"models.{role}.path: {error.detail}") from None
