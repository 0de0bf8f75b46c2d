"""The instruction that follows from a goal, and the independent way back from a sentence to a goal.

One short sentence for every wording, its words at fixed places (`put clean mug in shelf`), so that a tiny model with a
word-level vocabulary and a large model read the same task. `read` does not use `write`'s table: a goal that was changed
without its sentence is thereby caught.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from environments.household import sentences
from environments.household.kinds import LAMP, OBJECTS, RECEPTACLES
from environments.household.world import NOWHERE, Goal, World

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
    if world.catalogue.strict:
        return sentences.write(world)
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


_PUT = re.compile(r"put (?P<manner>\w+) (?P<object>\w+) in (?P<target>\w+)(?P<rest>.*)")
_LOOK = re.compile(r"look at (?P<object>\w+) under (?P<target>\w+)(?P<rest>.*)")
_REST = re.compile(r" hint (?P<object>\w+) in (?P<place>\w+(?: \d)?)")


@dataclass(frozen=True, slots=True)
class Announced:
    """What a sentence tells the agent: the goal, and where the hint says the object is ("fridge", "cabinet 2")."""

    goal: Goal
    place: str | None = None


def read(text: str, world: World | None = None) -> Announced | None:
    """What an instruction announces, or None when the sentence is not one of ours.

    Args:
        text: the sentence.
        world: whose rules it is read under; None are the simple ones.
    """
    sentence = " ".join(text.lower().split()).removesuffix(".")
    if world is not None and world.catalogue.strict:
        announced = sentences.read(sentence, world)
        return Announced(announced) if announced else None
    found = _PUT.fullmatch(sentence) or _LOOK.fullmatch(sentence)
    if found is None:
        return None
    parts = found.groupdict()
    goal = _goal(parts.get("manner"), parts["object"], parts["target"])
    if goal is None or not parts["rest"]:
        return Announced(goal) if goal else None
    hint = _REST.fullmatch(parts["rest"])
    if hint is None or hint["object"] != goal.object:
        return None
    return Announced(goal, hint["place"])


def _goal(manner: str | None, kind: str, target: str) -> Goal | None:
    if kind not in OBJECTS or target not in (*RECEPTACLES, LAMP):
        return None
    match manner:
        case None:
            return Goal("look", kind, target)
        case "some":
            return Goal("place", kind, target)
        case "clean":
            return Goal("clean", kind, target)
        case "hot":
            return Goal("heat", kind, target)
        case "cool":
            return Goal("cool", kind, target)
        case "two":
            return Goal("two", kind, target)
        case _:
            return None
