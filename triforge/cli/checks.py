"""Checks of a training before any service is started, made by the functions that the services call later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from triforge.algorithms.verdict import half_width
from triforge.cli.pools import pool_request
from triforge.cli.terminal import say
from triforge.config import RunConfig, Settings, merge
from triforge.doctor.local import demand_model
from triforge.environments import registry
from triforge.environments.criteria import shown_of
from triforge.environments.rows import read_lines, rows_of
from triforge.environments.tasks import CheckedTasks, check_pool, request_of
from triforge.environments.trainable import (
    config_on,
    demand_criteria,
    demand_trainable,
    unplayable,
)
from triforge.errors import ConfigError, InputError, TriforgeError, WeightsError, own_frames
from triforge.event_loop import run_anywhere
from triforge.rendering import Renderer
from triforge.rollout.isolation import fresh_environment
from triforge.rollout.live import LiveEnvironment
from triforge.rollout.protocols import EnvironmentFamily, TaskDraft
from triforge.types import Params, PoolState, Task

_FEW_HELDOUT: Final = 50  # tasks, which tell 20 points
_TRIED: Final = 2  # tasks
_TURNS: Final = 20
_PATIENCE_S: Final = 5.0  # for a task
_ANSWERS: Final = ("", "42", '{"answer": "42"}', "Answer: <answer>\\boxed{42}</answer>")


def check_new_pool(
    name: str,
    body: dict[str, Any] | Path,
    environment: str,
    *,
    play: bool,
    tell: Callable[[str], None] = say,
) -> tuple[PoolState, Task]:
    """Return the pool that env_adapter would make, and its first task, with all rows checked; with `play` the user's own code is called, too.

    Rows that repeat others or ask the same are reported by `tell`.

    Raises:
        InputError: the family is unknown, refuses options or rows, or raises at every answer.
        ConfigError: a package that the family needs is missing.
    """
    with ExitStack() as stack:
        request = pool_request(name, body, environment=environment)
        rows = (
            read_lines(stack.enter_context(body.open("rb")))
            if isinstance(body, Path)
            else rows_of(request)
        )
        head = request_of(request)
        checked = stack.enter_context(CheckedTasks())
        family = registry.family(head.environment)
        check_pool(family, head, rows, checked)
        if checked.summary:
            tell(f"{head.environment}: {checked.summary}")
        if 0 < (heldout := checked.splits["heldout"]) < _FEW_HELDOUT:
            tell(
                f"{head.environment}: {heldout} held-out tasks tell a gain from chance only above about "
                f"{100 * half_width(heldout):.0f} points; hold out more (`heldout`, and fewer `tasks` where there are no more)"
            )
        drafts = [draft for _, draft in islice(checked, _TRIED)]
        if play:
            demand_playable_code(family, drafts, head.options)
        tasks = {split: {"active": count} for split, count in checked.splits.items()}
        trials = _trials(family, (draft for split, draft in checked if split == "train"))
        pool = PoolState(
            id=name, name=name, environment=head.environment, options=head.options, created_at=0.0, tasks=tasks, proposals={},
            shown=shown_of(family, trials, head.options), **registry.traits(head.environment),
        )  # fmt: skip
        return pool, next(_trials(family, drafts))


def demand_shown(policy: Path, pool: PoolState, task: Task, options: Params) -> None:
    """Raise ConfigError if a task of a pool shows a system message, which the policy's chat template refuses."""
    reason = ""
    with suppress(WeightsError):  # `demand_models` says what is wrong with a folder
        reason = Renderer.from_folder(policy).refuses_system
    family = registry.family(pool.environment)
    if reason and run_anywhere(_system(family, task, merge(pool.options, options))):
        raise ConfigError(
            f"models.policy.path: given {str(policy)!r}, whose chat template takes no system message ({reason}), for "
            f"{pool.environment!r}, whose episodes begin with one: name another model, or let the environment show none (for "
            "most families env_adapter.options.guide = false)"
        )


async def _system(family: EnvironmentFamily, task: Task, options: Params) -> str:
    """Return the system message of an episode; empty if it cannot be begun here, or takes long."""
    live = LiveEnvironment(partial(fresh_environment, family, options), task, 0)
    with suppress(TriforgeError, TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            try:
                return (await live.start()).system
            finally:
                await live.close()
    return ""


def demand_playable(pool: PoolState, document: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    """Raise ConfigError for a pool that cannot be played or trained on as the document says on a deployment with the document `base`."""
    config = config_on(pool, base, document)
    demand_trainable(config, pool)
    demand_criteria(config, pool)
    try:
        registry.family(pool.environment).make(merge(pool.options, config.env_adapter.options))
    except (InputError, ConfigError) as error:
        raise unplayable(pool, error) from None


def demand_models(config: RunConfig, settings: Settings) -> None:
    """Raise ConfigError for a model that its engine, started or named by the settings, or its learner cannot load."""
    for role, model in config.models:
        if model.path and settings.has(f"{role}_model"):
            try:
                local = config.machine.serving == "local" and not settings.engines_of(role)
                demand_model(Path(model.path), local=local)
            except WeightsError as error:
                raise ConfigError(f"models.{role}.path: {error.detail}") from None


def demand_playable_code(
    family: EnvironmentFamily, drafts: Sequence[TaskDraft], options: Params
) -> None:
    """Raise InputError for an environment or reward function of the user's own that raises at every answer to these tasks."""
    if type(family).__module__.startswith("environments.") and "reward" not in options:
        return
    tasks = [*_trials(family, drafts)]
    errors = [run_anywhere(_errors(family, task, options)) for task in tasks]
    if not errors or not all(errors):
        return
    first = next(iter(errors[0].values()))[1]
    shown = "\n".join(
        f"answered {answer}: {_traced(error)}" for answer, error in errors[0].values()
    )
    raise InputError(
        f"{str(options.get('reward', family.name)).rpartition('#')[2]} raises at every answer to the first {len(tasks)} tasks; to {tasks[0].params!r:.300}\n"
        f"{shown}\nAn answer that it cannot read gets a low score or is an invalid action; raise only where nothing can be measured"
    ) from first


def _trials(family: EnvironmentFamily, drafts: Iterable[TaskDraft]) -> Iterator[Task]:
    return (
        Task(id=f"trial-{n}", pool_id="trial", slot="trial", family=family.name, instruction=draft.instruction, params=draft.params)
        for n, draft in enumerate(drafts)
    )  # fmt: skip


def _traced(error: TriforgeError) -> str:
    frames = own_frames(error.__cause__ or error)
    lines = (f"  {one.filename}:{one.lineno} in {one.name}: {one.line}" for one in frames)
    return "\n".join((error.detail, *lines))


async def _errors(
    family: EnvironmentFamily, task: Task, options: Params
) -> dict[str, tuple[str, TriforgeError]]:
    """Return the errors of a task by text, each with its answer; empty if an answer works or time runs out."""
    errors: dict[str, tuple[str, TriforgeError]] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            for responses in _answers(family, task, options):
                live = LiveEnvironment(partial(fresh_environment, family, options), task, 0)
                try:
                    await _play(live, responses)
                except TriforgeError as error:
                    errors.setdefault(
                        error.raised or error.detail, (f"{responses[0]!r:.100}", error)
                    )
                else:
                    return {}
                finally:
                    await live.close()
            return errors
    return {}


async def _play(live: LiveEnvironment, responses: Sequence[str]) -> None:
    await live.start()
    for response in responses:
        if (await live.step(response)).done:
            return


def _answers(family: EnvironmentFamily, task: Task, options: Params) -> Iterator[Sequence[str]]:
    """Yield general answers, then the other columns of the row, each repeated, then the solution of the family."""
    columns = task.params.get("columns")
    row = map(str, columns.values()) if isinstance(columns, dict) else ()
    for answer in (*_ANSWERS, *row):
        yield [answer] * _TURNS
    with suppress(Exception):
        if gold := family.gold(task, options):
            yield gold
