"""A second grammar of the household's instructions, so that a slip in a sentence is found."""

from __future__ import annotations

import re

from environments.household.catalogue import SIMPLE, GoalType, Rules
from environments.household.world import Goal, World

_FORMS: dict[Rules, tuple[str, ...]] = {
    "simple": (
        r"put (?P<how>some|clean|hot|cool|two) (?P<object>\w+) in (?P<target>\w+)"
        r"( hint (?P<hinted>\w+) in (?P<place>\w+( \d)?))?",
        r"(?P<how>look) at (?P<object>\w+) under (?P<target>\w+)"
        r"( hint (?P<hinted>\w+) in (?P<place>\w+( \d)?))?",
    ),
    "alfworld": (
        r"(?P<how>clean|heat|cool) some (?P<object>\w+) and put it in (?P<target>\w+)",
        r"put a (?P<how>clean|hot|cool) (?P<object>\w+) in (?P<target>\w+)",
        r"put (?P<how>a) (?P<object>\w+) in (?P<target>\w+)",
        r"put (?P<how>some) (?P<object>\w+) on (?P<target>\w+)",
        r"(?:put|find) (?P<how>two) (?P<object>\w+) (?:and put them )?in (?P<target>\w+)",
        r"(?P<how>look) at (?P<object>\w+) under the (?P<target>\w+)",
        r"(?P<how>examine) the (?P<object>\w+) with the (?P<target>\w+)",
    ),
}
_HOW: dict[str, GoalType] = {
    "a": "place", "some": "place", "look": "look", "examine": "look", "clean": "clean",
    "heat": "heat", "hot": "heat", "cool": "cool", "two": "two",
}  # fmt: skip


def read_announcement(text: str, world: World | None = None) -> tuple[Goal, str | None] | None:
    """Return the goal that an instruction announces and the place of its hint; None when the sentence is not one of ours."""
    catalogue = world.catalogue if world is not None else SIMPLE
    sentence = " ".join(text.lower().split()).removesuffix(".")
    matches = (re.fullmatch(form, sentence) for form in _FORMS[catalogue.rules])
    match = next(filter(None, matches), None)
    if match is None:
        return None
    parts = match.groupdict()
    goal = Goal(_HOW[parts["how"]], parts["object"], parts["target"])
    targets = catalogue.lamps if goal.type == "look" else catalogue.receptacles
    known = goal.object in catalogue.objects and goal.target in targets
    if not known or parts.get("hinted") not in (None, goal.object):
        return None
    return goal, parts.get("place")
