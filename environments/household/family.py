"""The household as an environment family."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from pydantic import JsonValue

from environments.household import generator, progress, rewriting
from environments.household.careless import SMALL, Carelessness, demonstrate
from environments.household.episode import Episode
from environments.household.params import PlayOptions, params_of, world_of
from environments.household.planner import plan
from environments.household.wording import announce
from environments.household.world import World
from triforge.environments.kit import Beginner, Family, parse_model
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.adapting import identity
from triforge.rollout.protocols import TaskDraft
from triforge.types import Params


def _careless(params: Params, options: Params, rng: Random) -> Sequence[str]:
    play = parse_model(PlayOptions, options, "household options")
    shown = demonstrate(world_of(params), play, rng, Carelessness())
    return [m["content"] for m in shown.messages if m["role"] == "assistant"]


class HouseholdFamily(Family[World, PlayOptions]):
    """The family `household`; README.md explains it."""

    name = "household"
    about = About(
        what="a text game of one room: find an object, bring it somewhere, maybe clean, heat or cool it first; ALFWorld's rules and words if wanted",
        tasks="generated, six types",
        licence="Apache-2.0 (own)",
        papers="RLAnything, EnvRL (there: ALFWorld)",
        steps_per_s=32_000,
    )
    never_blocks = True  # plain arithmetic on a small state
    labels_steps = True
    play_options = PlayOptions
    beginner = Beginner(
        generate=SMALL, options={"wording": "terse"}, play=_careless, episodes=6_000, updates=1200
    )

    def read(self, params: Params) -> World:
        return world_of(params)

    def write(self, given: World) -> Params:
        return params_of(given)

    def instruction(self, given: World) -> str:
        return announce(given)

    def kind(self, given: World) -> str:
        return given.goal.type

    def asks(self, draft: TaskDraft, options: Params) -> str:  # noqa: ARG002
        """Return room and goal: help, and the number of steps, make no other question of them."""
        help_ = ("until", "remind", "played", "hint", "horizon")
        return identity({name: v for name, v in draft.params.items() if name not in help_})

    def check(self, given: World) -> None:
        """Refuse a goal that already holds, or that no plan reaches within the horizon."""
        if given.won(given.start()):
            raise InputError("household params: field goal: it already holds at reset")
        steps = plan(given)
        if steps is None:
            raise InputError("household params: field goal: no plan reaches it")
        if len(steps) > given.horizon:
            raise InputError(
                f"household params: field horizon: given {given.horizon}, the shortest plan has {len(steps)} commands"
            )

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        worlds = generator.generate(count=count, seed=seed, options=options)
        return [params_of(world) for world in worlds]

    def begin(self, given: World, options: PlayOptions, announced: str, _seed: int) -> Episode:
        return Episode(given, options, announced)

    def solution(self, given: World, options: PlayOptions) -> Sequence[str] | None:
        steps = plan(given)
        if steps is None:
            return None
        episode = Episode(given, options, announce(given))
        out = []
        for command in steps:
            out.append(episode.response(episode.say(command)))
            episode.play(out[-1])
        return out

    rewrite_menu = staticmethod(rewriting.menu)
    apply_rewrite = staticmethod(rewriting.apply)
    check_rewrite = staticmethod(rewriting.check)
    drift = staticmethod(rewriting.drift)
    sub_goals = staticmethod(progress.sub_goals)

    def at_level(self, level: int, options: Params) -> Params:
        """Return the options for games whose shortest plan has `level + 4` commands; level 0 has the shorter ones, too."""
        commands: list[JsonValue] = [0 if level == 0 else level + 4, level + 4]
        return {**options, "commands": commands}


FAMILY: Final = HouseholdFamily()
