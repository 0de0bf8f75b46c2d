"""The instruction that follows from a goal, and the independent way back from a sentence to a goal.

One short sentence for every wording, its words at fixed places (`put clean mug in shelf`), so that a tiny model with a
word-level vocabulary and a large model read the same task. `read` does not use `write`'s table: a goal that was changed
without its sentence is thereby caught.
"""

from __future__ import annotations

import re
from typing import Final

from services.env_adapter.environments.household.kinds import LAMP, OBJECTS, RECEPTACLES, GoalType
from services.env_adapter.environments.household.world import NOWHERE, Goal, World

_SHAPES: Final[dict[str, str]] = {
    "place": "put some {object} in {target}",
    "clean": "put clean {object} in {target}",
    "heat": "put hot {object} in {target}",
    "cool": "put cool {object} in {target}",
    "two": "put two {object} in {target}",
    "look": "look at {object} under {target}",
}
_HINT: Final = " hint {object} in {place}"

WORDS: Final = ("put", "some", "clean", "hot", "cool", "two", "in", "look", "at", "under", "hint")
"""Every word of an instruction that is not a kind."""


def write(world: World) -> str:
    """The instruction of a game; with its hint, where the first object of the goal's kind lies at reset."""
    goal = world.goal
    text = _SHAPES[goal.type].format(object=goal.object, target=goal.target)
    place = hinted(world)
    if place is None:
        return text
    return text + _HINT.format(object=goal.object, place=place_name(world, place))


def hinted(world: World) -> int | None:
    """The receptacle that the hint names, or None for a game without a hint."""
    if not world.hint:
        return None
    for obj, place in enumerate(world.where):
        if world.objects[obj].kind == world.goal.object and place != NOWHERE:
            return place
    return None


def place_name(world: World, rec: int) -> str:
    """A receptacle's short name: its kind, with its number only where the room has several of the kind."""
    thing = world.receptacles[rec]
    several = sum(other.kind == thing.kind for other in world.receptacles) > 1
    return thing.name if several else thing.kind


_PUT = re.compile(r"put (\w+) (\w+) in (\w+)(?: hint \w+ in \w+(?: \d)?)?")
_LOOK = re.compile(r"look at (\w+) under (\w+)(?: hint \w+ in \w+(?: \d)?)?")


def read(text: str) -> Goal | None:
    """The goal that an instruction announces, or None when the sentence is not one of ours."""
    sentence = " ".join(text.lower().split()).removesuffix(".")
    if found := _LOOK.fullmatch(sentence):
        kind, target = found.groups()
        return Goal("look", kind, target) if kind in OBJECTS and target == LAMP else None
    if not (found := _PUT.fullmatch(sentence)):
        return None
    manner, kind, target = found.groups()
    if kind not in OBJECTS or target not in RECEPTACLES:
        return None
    goal_type: GoalType
    match manner:
        case "some":
            goal_type = "place"
        case "clean":
            goal_type = "clean"
        case "hot":
            goal_type = "heat"
        case "cool":
            goal_type = "cool"
        case "two":
            goal_type = "two"
        case _:
            return None
    return Goal(goal_type, kind, target)
