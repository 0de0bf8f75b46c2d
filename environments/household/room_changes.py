"""Changes of a room by a rewrite that keeps its goal: doors, places of the object, distractors, receptacles, horizon.

A change has a name that a language model can write. There are at most `MAX_CHANGES` of a room, a few of each sort. New kinds are
usual with the goal's object, so a policy that was trained on few kinds meets no unknown word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final, TypeVar

from environments.household.catalogue import DEVICE, OPENABLE
from environments.household.params import params_of
from environments.household.planner import plan
from environments.household.world import World
from triforge.types import Params

T = TypeVar("T")
Named = Iterator[tuple[str, Params]]

DOORS, MOVES, THINGS, PLACES = 3, 6, 2, 2  # of one sort and one direction
MAX_CHANGES: Final = 2 * (DOORS + 1 + THINGS + PLACES) + 1 + MOVES + 3


def room_changes(world: World) -> dict[str, Params]:
    """Return the game after every change of the room, by name; none under ALFWorld's rules, whose rooms stay."""
    if world.catalogue.strict:
        return {}
    now = params_of(world)
    sorts: tuple[Callable[[World, Any], Named], ...] = (_doors, _moves, _things, _places, _horizons)
    changes = chain.from_iterable(sort(world, now) for sort in sorts)
    return {name: {**now, **part} for name, part in changes}


def _sources(world: World) -> list[int]:
    return [i for i, thing in enumerate(world.objects) if thing.kind == world.goal.object]


def _played(world: World) -> set[int]:
    """Return the receptacles of the goal: those of its objects, its device, its target, and a lamp that it needs."""
    kinds = {world.goal.target, DEVICE.get(world.goal.type)}
    places = {i for i, thing in enumerate(world.receptacles) if thing.kind in kinds}
    sought = {world.goal.object, world.goal.target}
    pairs = zip(world.objects, world.where, strict=True)
    return places | {place for thing, place in pairs if thing.kind in sought}


def _doors(world: World, game: Any) -> Named:
    """Open or close one door, first those of the goal, or all of them."""
    now, played = game["receptacles"], _played(world)
    order = sorted(range(len(world.receptacles)), key=lambda i: (i not in played, i))
    doors = [i for i in order if world.receptacles[i].kind in OPENABLE]
    names = [world.receptacle_names[i] for i in doors]
    for verb, state in (("close", "closed"), ("open", "open")):
        change = [name for name in names if now[name] != state]
        for name in change[:DOORS]:
            yield f"{verb} {name}", {"receptacles": {**now, name: state}}
        if len(change) > 1:
            yield f"{verb} all", {"receptacles": {**now, **dict.fromkeys(change, state)}}


def _moves(world: World, game: Any) -> Named:
    """Move an object of the goal's kind to another of its usual places."""
    now, homes = game["objects"], world.catalogue.homes[world.goal.object]
    moves = [
        (world.object_names[obj], thing.name)
        for obj in _sources(world)[:2]
        for place, thing in enumerate(world.receptacles)
        if thing.kind in homes and place != world.where[obj]
    ]
    for name, place in spread(moves, MOVES):
        yield f"{name} to {place}", {"objects": {**now, name: place}}


def _things(world: World, game: Any) -> Named:
    """Add an object that the same goal could be about, where the goal's object lies, or remove one."""
    goal, catalogue, now = world.goal, world.catalogue, game["objects"]
    suits = catalogue.suits[goal.type] - {goal.object}
    place = world.receptacle_names[world.where[_sources(world)[0]]]
    others = [thing for thing in world.objects if thing.kind in suits]
    alike = [k for k in catalogue.objects if catalogue.homes[k] == catalogue.homes[goal.object]]
    kinds = [kind for kind in (*(thing.kind for thing in others), *alike) if kind in suits]
    for kind in list(dict.fromkeys(kinds))[:THINGS]:
        if (name := _free(kind, now, catalogue.most)) and len(now) < 64:
            yield f"add {name} to {place}", {"objects": {**now, name: place}}
    for thing in others[:THINGS]:
        yield f"remove {thing.name}", {"objects": {k: v for k, v in now.items() if k != thing.name}}


def _places(world: World, game: Any) -> Named:
    """Add a receptacle where the object might lie; or remove one with its objects, or all that the goal does not need."""
    now, objects = game["receptacles"], game["objects"]
    kinds = [thing.kind for thing in world.receptacles]
    numbered = [kind for kind in kinds if kinds.count(kind) > 1]  # numbers are words here already
    homes = [kind for kind in world.catalogue.homes[world.goal.object] if kind not in kinds]
    for kind in list(dict.fromkeys([*homes, *numbered]))[:PLACES]:
        if (name := _free(kind, now, world.catalogue.most)) and len(now) < 64:
            state = "closed" if kind in OPENABLE else "open"
            yield f"add {name}", {"receptacles": {**now, name: state}}
    idle = [i for i in range(len(kinds)) if i not in _played(world)]
    order = [world.receptacle_names[i] for i in sorted(idle, key=world.where.count)]
    less = {f"remove {name}": {name} for name in order[:PLACES]}
    if len(order) > PLACES:
        less["remove unused"] = set(order)
    for change, gone in less.items():
        kept = {k: v for k, v in now.items() if k not in gone}
        yield (
            change,
            {"receptacles": kept, "objects": {k: v for k, v in objects.items() if v in kept}},
        )


def _horizons(world: World, _: Any) -> Named:
    """Leave half or a quarter of the slack beyond the shortest plan, or lengthen the horizon by half."""
    steps = plan(world)
    if steps is None or len(steps) > world.horizon:
        return
    slack = world.horizon - len(steps)
    longer = min(1000, world.horizon + (world.horizon + 1) // 2)
    for horizon in dict.fromkeys(
        (world.horizon - (slack + 1) // 2, len(steps) + slack // 4, longer)
    ):
        if horizon != world.horizon:
            yield f"horizon {horizon}", {"horizon": horizon}


def _free(kind: str, names: Params, most: int) -> str | None:
    """Return the first free name of a kind."""
    names_of = (f"{kind} {number}" for number in range(1, most + 1))
    return next((name for name in names_of if name not in names), None)


def spread(items: list[T], count: int) -> list[T]:
    """Return at most `count` of the items, evenly over the list, in their order."""
    if len(items) <= count:
        return items
    return [items[i * len(items) // count] for i in range(count)]
