"""A task's parameters: the whole room as compact JSON, so that a task needs nothing beside itself.

    {"receptacles": {"fridge 1": "closed", "shelf 1": "open", "sinkbasin 1": "open"},
     "objects": {"mug 1": "fridge 1"},
     "goal": {"type": "clean", "object": "mug", "target": "shelf"},
     "horizon": 24, "hint": false}

A game under ALFWorld's rules says so, names which of the two sentences announces its goal, and has no hint:

    {"rules": "alfworld", "receptacles": {"fridge 1": "closed", "shelf 1": "open", "sinkbasin 1": "open"},
     "objects": {"mug 1": "fridge 1"},
     "goal": {"type": "clean", "object": "mug", "target": "shelf"},
     "phrase": 0, "horizon": 50}

The order of keys carries no meaning (a database may change it): everything is sorted by kind and number, under ALFWorld's
rules in the order in which its engine lists things.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from environments.household.catalogue import SIMPLE, Catalogue
from environments.household.house import ALFWORLD
from environments.household.kinds import DEVICE, LAMP, GoalType
from environments.household.world import NOWHERE, Goal, Thing, World
from triforge.environments import parsing
from triforge.errors import InputError
from triforge.types import Params

_NAME: Final = re.compile(r"([a-z]+) ([1-9][0-9]?)")
ModelT = TypeVar("ModelT", bound=BaseModel)


class GoalParams(BaseModel):
    """The goal as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    type: GoalType
    object: str
    target: str


class GameParams(BaseModel):
    """One game as JSON; see the module's example."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    receptacles: dict[str, Literal["open", "closed"]] = Field(min_length=1, max_length=64)
    objects: dict[str, str] = Field(min_length=1, max_length=64)
    goal: GoalParams
    horizon: int = Field(default=24, ge=1, le=1000)
    hint: bool = False


class HouseParams(BaseModel):
    """One game under ALFWorld's rules as JSON; see the module's second example."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    rules: Literal["alfworld"]
    receptacles: dict[str, Literal["open", "closed"]] = Field(min_length=1, max_length=64)
    objects: dict[str, str] = Field(min_length=1, max_length=128)
    goal: GoalParams
    phrase: Literal[0, 1] = 0
    horizon: int = Field(default=50, ge=1, le=1000)


def parse_model(model: type[ModelT], value: Params, what: str) -> ModelT:
    """Read a JSON object as `model`."""
    return parsing.parse_model(model, value, f"household {what}")


def world_of(params: Params) -> World:
    """Read and check a game."""
    if "rules" in params:
        house = parse_model(HouseParams, params, "params")
        return _world(house, ALFWORLD, phrase=house.phrase)
    game = parse_model(GameParams, params, "params")
    return _world(game, SIMPLE, hint=game.hint)


def _world(
    game: GameParams | HouseParams, catalogue: Catalogue, *, hint: bool = False, phrase: int = 0
) -> World:
    problems: list[str] = []
    carried = (*catalogue.objects, LAMP)
    most = catalogue.most
    receptacles = _things(game.receptacles, catalogue.receptacles, most, "receptacles", problems)
    objects = _things(game.objects, carried, most, "objects", problems)
    if catalogue.strict:
        problems.extend(_gaps(receptacles, "receptacles"))
        problems.extend(_gaps(objects, "objects"))
        receptacles = tuple(sorted(receptacles, key=listed))
        objects = tuple(sorted(objects, key=listed))
    places = {thing.name: index for index, thing in enumerate(receptacles)}
    problems.extend(_place_problems(game, catalogue, places))
    problems.extend(_goal_problems(game.goal, catalogue, receptacles, objects))
    if problems:
        raise InputError(f"household params: {'; '.join(problems)}", problems=tuple(problems))
    return World(
        receptacles=receptacles,
        objects=objects,
        where=tuple(places[game.objects[thing.name]] for thing in objects),
        opened=sum(
            1 << i
            for i, thing in enumerate(receptacles)
            if thing.kind in catalogue.openable and game.receptacles[thing.name] == "open"
        ),
        goal=Goal(game.goal.type, game.goal.object, game.goal.target),
        horizon=game.horizon,
        hint=hint,
        catalogue=catalogue,
        phrase=phrase,
    )


def listed(thing: Thing) -> tuple[str, int]:
    """The key by which ALFWorld's engine sorts things of a room: by the id behind the name, highest number first.

    The ids of basins begin with the sink or the bathtub that they belong to.
    """
    return f"{thing.kind.removesuffix('basin')}_", -thing.number


def params_of(world: World) -> Params:
    """The JSON of a game; `world_of` reads it back to an equal world."""
    names = [thing.name for thing in world.receptacles]
    last: Params = {"hint": world.hint}
    first: Params = {}
    if world.catalogue.strict:
        first, last = {"rules": world.catalogue.rules}, {"phrase": world.phrase}
    return {
        **first,
        "receptacles": {
            name: "open" if world.is_open(world.start(), i) else "closed"
            for i, name in enumerate(names)
        },
        "objects": {
            thing.name: names[place]
            for thing, place in zip(world.objects, world.where, strict=True)
            if place != NOWHERE
        },
        "goal": {"type": world.goal.type, "object": world.goal.object, "target": world.goal.target},
        "horizon": world.horizon,
        **last,
    }


def _things(
    names: Iterable[str], kinds: tuple[str, ...], most: int, where: str, problems: list[str]
) -> tuple[Thing, ...]:
    out = []
    for name in names:
        found = _NAME.fullmatch(name)
        if found is None or int(found[2]) > most:
            problems.append(f"field {where}.{name}: a name is a kind and a number 1..{most}")
        elif found[1] not in kinds:
            problems.append(f"field {where}.{name}: unknown kind, known are {_list(kinds)}")
        else:
            out.append(Thing(found[1], int(found[2])))
    return tuple(sorted(out))


def _gaps(things: Sequence[Thing], where: str) -> list[str]:
    """ALFWorld's engine numbers the things of a kind from 1 without gaps."""
    counts = Counter(thing.kind for thing in things)
    return [
        f"field {where}.{thing.name}: the room has {counts[thing.kind]} of this kind, numbers go from 1 on"
        for thing in things
        if thing.number > counts[thing.kind]
    ]


def _place_problems(
    game: GameParams | HouseParams, catalogue: Catalogue, places: dict[str, int]
) -> list[str]:
    out = []
    for name, state in game.receptacles.items():
        if state == "closed" and name.partition(" ")[0] not in catalogue.openable:
            openable = _list(sorted(catalogue.openable))
            out.append(f"field receptacles.{name}: only {openable} can be closed")
    for name, place in game.objects.items():
        kind = name.partition(" ")[0]
        if place not in places:
            out.append(f"field objects.{name}: there is no receptacle {place!r}")
        elif kind in catalogue.homes and not catalogue.fits(kind, place.partition(" ")[0]):
            out.append(
                f"field objects.{name}: {place!r} does not hold it, only {_list(catalogue.homes[kind])} do"
            )
    return out


def _goal_problems(
    goal: GoalParams,
    catalogue: Catalogue,
    receptacles: tuple[Thing, ...],
    objects: tuple[Thing, ...],
) -> list[str]:
    out = []
    kinds = {thing.kind for thing in receptacles}
    copies = sum(thing.kind == goal.object for thing in objects)
    needed = 2 if goal.type == "two" else 1
    if goal.object not in catalogue.objects or copies < needed:
        out.append(f"field goal.object: the room has {copies} {goal.object!r}, needed {needed}")
    elif goal.object not in catalogue.suits[goal.type]:
        out.append(f"field goal.object: {goal.object!r} does not suit the goal {goal.type!r}")
    if goal.type == "look":
        if goal.target != LAMP or all(thing.kind != LAMP for thing in objects):
            out.append(f"field goal.target: look needs a {LAMP!r} in the room as its target")
    elif goal.target not in kinds:
        out.append(f"field goal.target: the room has no {goal.target!r}")
    device = DEVICE.get(goal.type)
    if device is not None and device not in kinds:
        out.append(f"field goal.type: {goal.type!r} needs a {device!r} in the room")
    return out


def _list(words: Iterable[str]) -> str:
    return ", ".join(words)
