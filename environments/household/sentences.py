"""The sentences in which ALFWorld announces a task, two for each type of goal, and the way back from one to its goal.

The way back does not use the table of the way there: a goal that was changed without its sentence is thereby caught.
"""

from __future__ import annotations

import re
from typing import Final

from environments.household.kinds import LAMP, GoalType
from environments.household.world import Goal, World

PHRASES: Final[dict[GoalType, tuple[str, str]]] = {
    "place": ("put a {object} in {target}", "put some {object} on {target}"),
    "look": ("look at {object} under the {target}", "examine the {object} with the {target}"),
    "clean": ("put a clean {object} in {target}", "clean some {object} and put it in {target}"),
    "heat": ("put a hot {object} in {target}", "heat some {object} and put it in {target}"),
    "cool": ("put a cool {object} in {target}", "cool some {object} and put it in {target}"),
    "two": ("put two {object} in {target}", "find two {object} and put them in {target}"),
}


def write(world: World) -> str:
    """The sentence of a game under ALFWorld's rules; `World.phrase` says which of the two."""
    goal = world.goal
    return PHRASES[goal.type][world.phrase].format(object=goal.object, target=goal.target)


_FORMS: Final[tuple[tuple[str, GoalType | None], ...]] = (
    (r"(?P<how>clean|heat|cool) some (?P<object>\w+) and put it in (?P<target>\w+)", None),
    (r"put a (?P<how>clean|hot|cool) (?P<object>\w+) in (?P<target>\w+)", None),
    (r"put a (?P<object>\w+) in (?P<target>\w+)", "place"),
    (r"put some (?P<object>\w+) on (?P<target>\w+)", "place"),
    (r"(?:put|find) two (?P<object>\w+) (?:and put them )?in (?P<target>\w+)", "two"),
    (r"(?:look at|examine the) (?P<object>\w+) (?:under|with) the (?P<target>\w+)", "look"),
)
_HOW: Final[dict[str, GoalType]] = {"clean": "clean", "heat": "heat", "hot": "heat", "cool": "cool"}


def read(text: str, world: World) -> Goal | None:
    """The goal that a sentence announces, or None when it is no sentence about things of the world's catalogue."""
    for pattern, sort in _FORMS:
        found = re.fullmatch(pattern, text)
        if found is None:
            continue
        goal = Goal(sort or _HOW[found["how"]], found["object"], found["target"])
        known = goal.object in world.catalogue.objects
        places = (LAMP,) if goal.type == "look" else world.catalogue.receptacles
        return goal if known and goal.target in places else None
    return None
