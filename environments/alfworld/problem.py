"""A game of the household under ALFWorld's rules as a PDDL problem of ALFWorld's domain, and as a game file's fields.

Every receptacle stands at a place of its own; the agent starts at a place where nothing stands. Ids are chosen so that
ALFWorld's own numbering gives each thing the name it has in the household.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from environments.household.catalogue import ALFWORLD, LAMP, GoalType
from environments.household.world import Goal, Thing, World

TASK_TYPES: Final[dict[GoalType, str]] = {
    "place": "pick_and_place_simple",
    "look": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "two": "pick_two_obj_and_place",
}
"""ALFWorld's names for the types of goal."""

_AGENT: Final = "agent1"
_START: Final = "loc_bar_start"
_STATES: Final[tuple[tuple[GoalType, str, str], ...]] = (
    ("clean", "cleanable", "isclean"),
    ("heat", "heatable", "ishot"),
    ("cool", "coolable", "iscool"),
)
_DEVICES: Final = ("sinkbasin", "microwave", "fridge")
_TOOLS: Final = ("knife", "butterknife")


def problem(world: World) -> str:
    """The problem as PDDL text."""
    ids = identifiers((*world.receptacles, *world.objects))
    facts = [f"(atlocation {_AGENT} {_START})"]
    facts += _receptacle_facts(world, ids)
    facts += _object_facts(world, ids)
    places, kinds = _types(world)
    facts += [
        f"(cancontain {place}type {kind}type)"
        for place in places
        for kind in kinds
        if place in ALFWORLD.homes.get(kind, ())
    ]
    locations = [_START, *(f"loc_{ids[thing]}" for thing in world.receptacles)]
    declared = [
        f"{_AGENT} - agent",
        *(f"{name} - location" for name in locations),
        *(f"{ids[thing]} - receptacle" for thing in world.receptacles),
        *(f"{ids[thing]} - object" for thing in world.objects),
        *(f"{place}type - rtype" for place in places),
        *(f"{kind}type - otype" for kind in kinds),
    ]
    return (
        "(define (problem household)\n(:domain alfred)\n(:objects\n"
        + "\n".join(declared)
        + "\n)\n(:init\n"
        + "\n".join(facts)
        + f"\n)\n(:goal {_goal(world.goal)})\n)\n"
    )


def identifiers(things: tuple[Thing, ...]) -> dict[Thing, str]:
    """An id for each thing. ALFWorld numbers the things of a kind from the last id to the first."""
    counts = Counter(thing.kind for thing in things)
    return {thing: _id(thing, counts[thing.kind] - thing.number) for thing in things}


def _id(thing: Thing, rank: int) -> str:
    if thing.kind.endswith("basin"):
        return f"{thing.kind.removesuffix('basin')}_bar_{rank:02d}_bar_{thing.kind}"
    return f"{thing.kind}_bar_{rank:02d}"


def _types(world: World) -> tuple[list[str], list[str]]:
    """Kinds of receptacle and of object in use, with those that ALFWorld's domain names whether they occur or not."""
    places = sorted({*_DEVICES, *(thing.kind for thing in world.receptacles)})
    kinds = sorted({*_TOOLS, *(thing.kind for thing in world.objects)})
    return places, kinds


def _receptacle_facts(world: World, ids: dict[Thing, str]) -> list[str]:
    out = []
    for rec, thing in enumerate(world.receptacles):
        name = ids[thing]
        out.append(f"(receptacletype {name} {thing.kind}type)")
        out.append(f"(receptacleatlocation {name} loc_{name})")
        if world.openable >> rec & 1:
            out.append(f"(openable {name})")
            if world.is_open(world.start(), rec):
                out.append(f"(opened {name})")
    return out


def _object_facts(world: World, ids: dict[Thing, str]) -> list[str]:
    out = []
    for obj, thing in enumerate(world.objects):
        name, place = ids[thing], ids[world.receptacles[world.where[obj]]]
        out.append(f"(objecttype {name} {thing.kind}type)")
        out.append(f"(inreceptacle {name} {place})")
        out.append(f"(objectatlocation {name} loc_{place})")
        if thing.kind == LAMP:
            out.append(f"(toggleable {name})")
            continue
        out.append(f"(pickupable {name})")
        out.extend(
            f"({fact} {name})" for sort, fact, _ in _STATES if thing.kind in ALFWORLD.suits[sort]
        )
        if thing.kind in ALFWORLD.containers:
            out.append(f"(isreceptacleobject {name})")
        if thing.kind in ALFWORLD.sliceable:
            out.append(f"(sliceable {name})")
    return out


def _goal(goal: Goal) -> str:
    """What wins, as a PDDL formula."""
    kind = f"{goal.object}type"
    if goal.type == "look":
        return (
            f"(and (exists (?held - object) (and (objecttype ?held {kind}) (holds {_AGENT} ?held)))"
            " (exists (?lamp - object ?place - receptacle ?spot - location) (and"
            f" (objecttype ?lamp {goal.target}type) (toggleable ?lamp) (istoggled ?lamp) (inreceptacle ?lamp ?place)"
            f" (receptacleatlocation ?place ?spot) (atlocation {_AGENT} ?spot))))"
        )
    target = f"(receptacletype ?place {goal.target}type)"
    first = f"(objecttype ?thing {kind}) (inreceptacle ?thing ?place)"
    if goal.type == "two":
        second = f"(not (= ?thing ?other)) (objecttype ?other {kind}) (inreceptacle ?other ?place)"
        return (
            "(exists (?place - receptacle ?thing - object ?other - object) "
            f"(and {target} {first} {second}))"
        )
    state = "".join(f" ({done} ?thing)" for sort, _, done in _STATES if sort == goal.type)
    return f"(exists (?place - receptacle ?thing - object) (and {target} {first}{state}))"
