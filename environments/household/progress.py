"""Progress of an episode: find the object, take it, treat it, bring it; found by playing its actions again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from environments.household.episode import Episode
from environments.household.params import PlayOptions, world_of
from environments.household.world import NOTHING, NOWHERE, TREATMENTS, State, World
from triforge.environments.kit import parse_model
from triforge.rollout.adapting import SubGoal
from triforge.types import Params, Task

Test = Callable[[State], bool]


def sub_goals(task: Task, actions: Sequence[str], options: Params) -> list[SubGoal]:
    """Return the sub-goals of a game in order, each with the number of actions after which it first held."""
    world = world_of(task.params)
    play = parse_model(PlayOptions, options, "household options")
    episode = Episode(world, play.model_copy(update={"answer": "whole"}), task.instruction)
    states = [*world.before]
    for action in actions:
        if episode.done:
            break
        episode.play(action)
        states.append(episode.state)
    first = len(world.played)
    counts = {
        name: next((count for count, state in enumerate(states) if holds(state)), None)
        for name, holds in tests(world)
    }
    return [
        SubGoal(name, None if count is None else max(0, count - first))
        for name, count in counts.items()
    ]


def tests(world: World) -> Iterator[tuple[str, Test]]:
    """Yield the name of each sub-goal of a game, and whether a state has it; a goal with `until` ends there."""
    goal = world.goal
    thing, target = goal.object, goal.target
    mine = [i for i, one in enumerate(world.objects) if one.kind == thing]
    targets = world.of_kind(target)

    def holding(state: State) -> bool:
        return state.held != NOTHING and state.held in mine

    def brought(state: State) -> bool:
        return any(state.where[i] in targets for i in mine if state.where[i] != NOWHERE)

    yield f"find {thing}", lambda s: holding(s) or any(i in mine for i in world.here(s))
    yield f"take {thing}", holding
    if goal.until == "take":
        return
    if goal.type in TREATMENTS:
        yield f"{goal.type} {thing}", lambda s: any(world.meets(s, i) for i in mine)
    if goal.until:
        return
    if goal.type == "look":
        lamps = [i for i, one in enumerate(world.objects) if one.kind == target]
        yield f"use {target}", lambda s: any(s.lit >> i & 1 for i in lamps)
        yield f"look at {thing} under {target}", world.won
        return
    if goal.type == "two":
        yield f"bring one {thing} to {target}", brought
        yield f"take another {thing}", lambda s: holding(s) and brought(s)
        thing = f"two {thing}"
    yield f"bring {thing} to {target}", world.won
