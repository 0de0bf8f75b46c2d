"""Difficulty of a game: a total order, so that "harder" and "easier" are known before a game is played.

The order compares, one after the other:

    load         expected commands of an agent that searches, as a share of the horizon
    look-alikes  objects of other kinds that the same type of goal could be about
    place        the rank of the object's likeliest place among its usual places
    goal, object ranks of the goal's type and of the kind of object (common ones are low)

Expected commands are the shortest plan and the search: each receptacle without a sought object costs one command (two where its
door is closed), times the chance that a search in random order comes to it too early. A hint saves the search for its object.
"""

from __future__ import annotations

from fractions import Fraction

from environments.household.catalogue import GOAL_TYPES
from environments.household.wording import hinted
from environments.household.world import World

Difficulty = tuple[Fraction, int, int, int, int]


def difficulty(world: World, steps: int) -> Difficulty:
    """Return the place of a game in the order; `steps` is the length of its shortest plan."""
    goal, catalogue = world.goal, world.catalogue
    things = list(zip(world.objects, world.where, strict=True))
    suits = catalogue.suits[goal.type] - {goal.object}
    homes = catalogue.homes[goal.object]
    kinds = [world.receptacles[at].kind for thing, at in things if thing.kind == goal.object]
    ranks = [homes.index(kind) if kind in homes else len(homes) for kind in kinds]
    return (
        (steps + search(world)) / world.horizon,
        sum(thing.kind in suits for thing, _ in things),
        min(ranks, default=0),
        GOAL_TYPES.index(goal.type),
        catalogue.objects.index(goal.object),
    )


def search(world: World) -> Fraction:
    """Return the expected commands spent on receptacles without a sought object, in a search in random order."""
    goal, hint = world.goal, hinted(world)
    at = {
        kind: {
            place
            for thing, place in zip(world.objects, world.where, strict=True)
            if thing.kind == kind
        }
        for kind in {goal.object, goal.target}
    }
    unknown = at[goal.object] - {hint}
    wanted = goal.copies - (hint is not None)
    if goal.type == "look":
        lamps = at[goal.target] - {hint}
        wanted += bool(lamps)
        unknown = unknown | lamps
    start = world.start()
    idle = set(range(len(world.receptacles))) - unknown - {hint}
    spent = sum(1 if world.is_open(start, place) else 2 for place in idle)
    return Fraction(max(0, min(wanted, len(unknown))) * spent, len(unknown) + 1)
