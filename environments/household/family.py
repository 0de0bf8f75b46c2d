"""The household as an environment family: what the rest of triforge sees of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from environments.household import generator, rewriting
from environments.household.episode import Episode, Household
from environments.household.params import PlayOptions, params_of, world_of
from environments.household.planner import plan
from environments.household.wording import announce
from triforge.environments.kit import parse_model
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.protocols import Environment, RewriteMenu, TaskDraft
from triforge.types import CheckResult, Direction, Params, Task


class HouseholdFamily:
    """The family `household`; see README.md beside this file for the options."""

    name = "household"
    about = About(
        what="a text game of one room: find an object, bring it somewhere, maybe clean, heat or cool it first; ALFWorld's rules and words if wanted",
        tasks="generated, six types",
        licence="Apache-2.0 (own)",
        papers="RLAnything, EnvRL (there: ALFWorld)",
        steps_per_s=32_000,
    )
    never_blocks = True  # plain arithmetic on a small state

    def validate(self, params: Params) -> TaskDraft:
        """Check and normalise a game and write its instruction."""
        world = world_of(params)
        if world.won(world.start()):
            raise InputError("household params: field goal: it already holds at reset")
        steps = plan(world)
        if steps is None:
            raise InputError("household params: field goal: no plan reaches it")
        if len(steps) > world.horizon:
            raise InputError(
                f"household params: field horizon: was {world.horizon}, the shortest plan has {len(steps)} commands"
            )
        return TaskDraft(params=params_of(world), instruction=announce(world), kind=world.goal.type)

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        """Make `count` solvable games under `options` (see `GeneratorOptions`)."""
        worlds = generator.generate(count=count, seed=seed, options=options)
        return [params_of(world) for world in worlds]

    def make(self, options: Params) -> Environment:
        """A fresh environment with the wording and action format of `options` (see `PlayOptions`)."""
        return Household(parse_model(PlayOptions, options, "household options"))

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:
        """The responses of a shortest plan, or None when there is no plan."""
        world = world_of(task.params)
        steps = plan(world)
        if steps is None:
            return None
        episode = Episode(
            world, parse_model(PlayOptions, options, "household options"), task.instruction
        )
        out = []
        for command in steps:
            out.append(episode.response(episode.say(command)))
            episode.play(out[-1])
        return out

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        """The closed choices of a rewrite in one direction, each proved."""
        return rewriting.menu(task, direction)

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        """The candidate that follows from an answer, its instruction written anew."""
        return rewriting.apply(task, answer)

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        """The proofs of a candidate."""
        return rewriting.check(parent, candidate)

    def drift(self, root: Params, candidate: Params) -> float:
        """The share of goal, object, target and hint that differ."""
        return rewriting.drift(root, candidate)

    def at_level(self, level: int, options: Params) -> Params:
        """Games whose shortest plan has `level + 4` commands; level 0 has the shorter ones, too."""
        commands: list[JsonValue] = [0 if level == 0 else level + 4, level + 4]
        return {**options, "commands": commands}


FAMILY: Final = HouseholdFamily()
