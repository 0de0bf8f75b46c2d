"""Methods by name: what one paper adds to the loop, a package each.

A package offers a method with two lines of its pyproject.toml; ours do so, too:

    [project.entry-points."triforge.methods"]
    spark = "methods.spark:METHOD"

`package.module:METHOD` names one that no installed package offers. A run uses a method if its document has the section
`[methods.NAME]`, if `algorithm.preset` is a preset of the method, or if the method is one of the defaults.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Any, Final

from triforge.errors import ConfigError

GROUP: Final = "triforge.methods"
RESERVED: Final = (
    "base",
    "best",
    "orchestrator",
    "paths",
    "votes",
    "window",
)  # keys of the loop's own notes


@dataclass(frozen=True, kw_only=True, eq=False)
class Controller:
    """A controller of adaptation: it decides how a task changes once a training group of it was measured.

    Attributes:
        part: the path of a `services.env_adapter.adaptation.controllers.TaskController`, a class that is made with
            `ControllerParts`; in adapt workers. Without one every task stays as it is, and a run needs no adapt workers.
        rewrites: whether a model rewrites tasks, and pairs of groups measure the rewrites.
        reads_notes: whether it reads how the rollouts of a group were judged.
        needs_levels: whether its tasks come from difficulty levels of the environment.
    """

    part: str = ""
    rewrites: bool = False
    reads_notes: bool = False
    needs_levels: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Scorer:
    """A source of step scores, `reward.kind`.

    Attributes:
        part: the path of a `triforge.rollout.protocols.StepScorer`, or with `by_group` of a `GroupScorer`; in judge workers.
        credit: with `by_group`, the path of a `services.trainer.credit.credited.GroupCredit`; in the orchestrator. Without one the
            judgement has scores of steps, which enter rewards as votes do.
        casts_votes: each step gets votes of +1 and -1; otherwise it has a score, or nothing.
        trains_judge: the reward model may learn from its results.
        frozen: no run trains the model that it asks, so it has no learner.
        by_group: one job judges a whole group, in the place of one job a trajectory.
        by_agent: the agents of an environment may have judges of their own (`models.NAME.judges`).
        one_player: the policy is the only model that plays.
        needs_temperature_one: engines score prompts, which they do at temperature 1.
        needs_reference: the reward model's service serves the weights that the policy starts from.
        needs_labels: environments label their steps.
        needs_programs: the tasks are solved by programs.
        shows_task: its judge is shown the task, and what `reward.shows` names of it.
    """

    part: str = ""
    credit: str = ""
    casts_votes: bool = True
    trains_judge: bool = False
    frozen: bool = False
    by_group: bool = False
    by_agent: bool = False
    one_player: bool = False
    needs_temperature_one: bool = False
    needs_reference: bool = False
    needs_labels: bool = False
    needs_programs: bool = False
    shows_task: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Strategy:
    """How the rollouts of a training group are drawn, `env_adapter.strategy`. Groups that measure the policy are drawn plainly.

    Attributes:
        part: the path of a `triforge.rollout.strategies.RolloutStrategy`; in rollout workers. Without one each rollout is an
            episode by itself.
        siblings: the steps of one index are candidates for one turn; they are compared with each other, and only one of them
            was played on.
        draws_policy: each response is a draw of the policy, so that it has a ratio and an advantage.
    """

    part: str = ""
    siblings: bool = False
    draws_policy: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Method:
    """A manifest. Each part is a path, `package.module:object`, that only the process which needs it imports.

    Attributes:
        name: the section `[methods.NAME]`, and the key of the method's notes and of `extra` fields on the wire.
        options: the options of the section, a subclass of `triforge.config.methods.MethodOptions`; None if there are none.
            Importing them brings neither torch nor a service.
        default: whether each run uses the method, without being asked.
        presets: overrides of the algorithm by the name of the preset.
        estimators: paths of `triforge.algorithms.estimators.Estimator`s by name.
        loop: hooks of the training loop, a subclass of `services.trainer.loop.hooks.LoopHooks`; in the orchestrator.
        strategy: how rollouts are drawn in runs whose `env_adapter.strategy` is the method's name or path.
        scorer: step scores of runs whose `reward.kind` is the method's name or path.
        environment: makes the environment of groups that carry `extra[name]`, a function of that value and of `make`, which
            makes the task's own; in rollout workers.
        objective: what a learner adds to the gradient, a subclass of `services.trainer.learner.objectives.Objective`.
        controller: how tasks change in runs whose `adaptation.controller` is the method's name or path.
    """

    name: str
    options: type[Any] | None = None
    default: bool = False
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    estimators: Mapping[str, str] = field(default_factory=dict)
    loop: str = ""
    strategy: Strategy | None = None
    scorer: Scorer | None = None
    environment: str = ""
    objective: str = ""
    controller: Controller | None = None


@functools.cache
def known() -> tuple[str, ...]:
    """Return the names of all installed methods, sorted."""
    return tuple(sorted(entry_points(group=GROUP).names))


@functools.cache
def find(name: str) -> Method:
    """Return the installed method of that name, or the one that a path names; its name is the given one.

    Raises:
        ConfigError: there is none, or it cannot be imported.
    """
    if name in RESERVED:
        raise ConfigError(
            f"method {name}: the loop keeps notes of its own under {', '.join(RESERVED)}, expected another name"
        )
    entries = entry_points(group=GROUP, name=name)
    path = next(iter(entries)).value if entries else name
    loaded = load_part(path, name) if ":" in path else None
    if not isinstance(loaded, Method):
        raise ConfigError(
            f"{name}: unknown method; allowed are {', '.join(known())} or the path of another, 'package.module:METHOD'"
        )
    return replace(loaded, name=name)


@functools.cache
def preset_owner(preset: str) -> Method | None:
    """Return the installed method that brings a preset; None if no method does."""
    methods = (find(name) for name in known())
    return next((method for method in methods if preset in method.presets), None)


def load_part(path: str, option: str) -> Any:
    """Import what `package.module:object` names.

    Raises:
        ConfigError: the import fails; `option` names the field that gave the path.
    """
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{option}: given {path!r} ({error}), expected 'package.module:object'"
        ) from error


def loop_part(method: Method) -> Any:
    """Import the loop part of a method.

    Raises:
        ConfigError: the import fails, or the class has a public name that is no hook.
    """
    option = f"methods.{method.name}.loop"
    part: Any = load_part(method.loop, option)
    unknown: list[str] = getattr(
        part, "unknown_names", list
    )()  # a function that makes hooks has none
    if unknown:
        raise ConfigError(
            f"{option}: given {method.loop!r} with {', '.join(unknown)}, expected hooks of `LoopHooks`; begin other names with '_'"
        )
    return part
