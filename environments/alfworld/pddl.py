"""The room and the goal of a game file, read from its PDDL, and the same game with another goal. Standard library only.

Names are read in small letters, as the planner reads them; a kind is a type without its ending ("mug" of MugType).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

from environments.household.catalogue import DEVICE

_ATOM: Final = re.compile(r"\(\s*([a-z]+)((?:\s+[^\s()]+)*)\s*\)")
_GOAL: Final = re.compile(r"\(\s*:goal\b", re.IGNORECASE)
_TASK: Final = re.compile(r"(Your task is to: )[^\"\n\\]+?(\.?\")")
STATES: Final = {"clean": "isclean", "heat": "ishot", "cool": "iscool"}
# goals of things that ALFWorld's text environment leaves out
_BEYOND: Final = ("issliced", "inreceptacleobject")
SUITS: Final = {"clean": "cleanable", "heat": "heatable", "cool": "coolable"}

Fact = tuple[str, ...]
Wanted = tuple[str, str, str]
"""Type of the goal in the household's words, kind of object, kind of receptacle or lamp."""


@dataclass(frozen=True)
class Room:
    """The facts of a problem at reset, and its goal where that is one of the six types."""

    kinds: dict[str, str]
    places: dict[str, str]
    inside: dict[str, str]
    holds: frozenset[tuple[str, str]]
    marks: dict[str, frozenset[str]]
    goal: Wanted | None

    def of_kind(self, kind: str, mark: str = "pickupable") -> list[str]:
        """Return the objects of a kind that have a mark."""
        return [
            thing for thing, its in self.kinds.items() if its == kind and thing in self.marks[mark]
        ]

    def shut(self, place: str) -> bool:
        """Return whether a receptacle is closed."""
        return place in self.marks["openable"] and place not in self.marks["opened"]

    def goals(self, sort: str) -> list[Wanted]:
        """Return every goal of a type that can be reached here and is not true yet."""
        kinds, targets = sorted(set(self.kinds.values())), sorted(self._targets(sort))
        every = [(sort, kind, target) for kind in kinds for target in targets]
        return [goal for goal in every if self.reachable(goal) and not self.true(goal)]

    def reachable(self, goal: Wanted) -> bool:
        """Return whether kinds and marks allow a goal: things that may take the state, the device, a target for them."""
        sort, kind, target = goal
        held = [
            one for one in self.of_kind(kind) if one in self.marks[SUITS.get(sort, "pickupable")]
        ]
        if len(held) < (2 if sort == "two" else 1) or target not in self._targets(sort):
            return False
        return DEVICE.get(sort, target) in self._targets(sort) and (
            sort == "look" or (target, kind) in self.holds
        )

    def _targets(self, sort: str) -> set[str]:
        """Return the kinds of lamp or of receptacle."""
        if sort != "look":
            return set(self.places.values())
        return {self.kinds[one] for one in self.marks["toggleable"] if one in self.kinds}

    def true(self, goal: Wanted) -> bool:
        """Return whether a goal holds at reset, when nothing is clean, hot, cool, held or lit."""
        sort, kind, target = goal
        at = [self.inside.get(one, "") for one in self.kinds if self.kinds[one] == kind]
        at = [place for place in at if self.places.get(place) == target]
        if sort == "two":
            return any(at.count(place) > 1 for place in at)
        return sort == "place" and bool(at)

    def difficulty(self, goal: Wanted) -> tuple[int, int]:
        """Return how much of a goal is out of sight (object, target), then how rare the object is."""
        sort, kind, target = goal
        things = self.of_kind(kind)
        hidden = all(self.shut(self.inside.get(one, "")) for one in things)
        away = sort != "look" and all(
            self.shut(p) for p, its in self.places.items() if its == target
        )
        return hidden + away, -len(things)


def read_room(problem: str) -> Room:
    """Read the room of a problem."""
    start, goal, _ = _cut(problem)
    facts: dict[str, list[Fact]] = defaultdict(list)
    for name, rest in _ATOM.findall(start.lower()):
        facts[name].append(tuple(rest.split()))
    marks = ("pickupable", "toggleable", "openable", "opened", *SUITS.values())
    return Room(
        kinds={one: kind.removesuffix("type") for one, kind in _pairs(facts["objecttype"])},
        places={one: kind.removesuffix("type") for one, kind in _pairs(facts["receptacletype"])},
        inside=dict(_pairs(facts["inreceptacle"])),
        holds=frozenset(
            (place.removesuffix("type"), kind.removesuffix("type"))
            for place, kind in _pairs(facts["cancontain"])
        ),
        marks={name: frozenset(fact[0] for fact in facts[name] if fact) for name in marks},
        goal=_wanted(goal),
    )


def _pairs(facts: list[Fact]) -> list[tuple[str, str]]:
    return [(fact[0], fact[1]) for fact in facts if len(fact) == 2]


def _wanted(goal: str) -> Wanted | None:
    atoms = [(name, tuple(rest.split())) for name, rest in _ATOM.findall(goal.lower())]
    names = {name for name, _ in atoms}
    kinds = {fact[0]: fact[1].removesuffix("type") for name, fact in atoms if name == "objecttype"}
    targets = [fact[1].removesuffix("type") for name, fact in atoms if name == "receptacletype"]
    if not kinds or names & set(_BEYOND):
        return None
    if "istoggled" in names:
        lit = [kinds.get(fact[0]) for name, fact in atoms if name == "istoggled"]
        held = [kinds.get(fact[-1]) for name, fact in atoms if name == "holds"]
        return ("look", held[0], lit[0]) if held and held[0] and lit[0] else None
    if not targets or len(set(kinds.values())) > 1:
        return None
    states = [sort for sort, name in STATES.items() if name in names]
    sort = states[0] if states else "two" if len(kinds) > 1 else "place"
    return sort, next(iter(kinds.values())), targets[0]


def _cut(problem: str) -> tuple[str, str, str]:
    """Return the text before the goal, its formula, and the text after it."""
    match = _GOAL.search(problem)
    if match is None:
        return problem, "", ""
    depth = 0
    for place in range(match.start(), len(problem)):
        depth += {"(": 1, ")": -1}.get(problem[place], 0)
        if depth == 0:
            return problem[: match.start()], problem[match.end() : place], problem[place + 1 :]
    return problem, "", ""


def with_goal(game: dict[str, Any], formula: str, task: str) -> dict[str, Any]:
    """Return the game with another goal and its announcement."""
    before, _, after = _cut(game["pddl_problem"])
    grammar = _TASK.sub(lambda match: f"{match[1]}{task}{match[2]}", game["grammar"])
    return {**game, "pddl_problem": f"{before}(:goal {formula}){after}", "grammar": grammar}
