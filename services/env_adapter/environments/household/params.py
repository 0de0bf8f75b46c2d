"""A task's parameters: the whole room as compact JSON, so that a task needs nothing beside itself.

    {"receptacles": {"fridge 1": "closed", "shelf 1": "open", "sinkbasin 1": "open"},
     "objects": {"mug 1": "fridge 1"},
     "goal": {"type": "clean", "object": "mug", "target": "shelf"},
     "horizon": 24, "hint": false}

The order of keys carries no meaning (a database may change it): everything is sorted by kind and number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.env_adapter.environments.household.kinds import (
    DEVICE,
    LAMP,
    MAX_PER_KIND,
    OBJECTS,
    OPENABLE,
    RECEPTACLES,
    SUITS,
    GoalType,
)
from services.env_adapter.environments.household.world import NOWHERE, Goal, Thing, World
from triforge.errors import InputError
from triforge.messages import Params

_NAME: Final = re.compile(r"([a-z]+) ([1-9])")
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


def parse_model(model: type[ModelT], value: Params, what: str) -> ModelT:
    """Read a JSON object as `model`.

    Raises:
        InputError: names every field that is unknown, missing or out of its limits.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = tuple(
            _sentence(item["loc"], item["msg"], item.get("input")) for item in error.errors()
        )
        raise InputError(f"household {what}: {'; '.join(problems)}", problems=problems) from None


def _sentence(place: tuple[int | str, ...], message: str, given: object) -> str:
    shown = repr(given)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return f"field {'.'.join(map(str, place)) or '(all)'}: {message} (given {shown})"


def world_of(params: Params) -> World:
    """Read and check a game.

    Raises:
        InputError: names each bad field.
    """
    game = parse_model(GameParams, params, "params")
    problems: list[str] = []
    receptacles = _things(list(game.receptacles), RECEPTACLES, "receptacles", problems)
    objects = _things(list(game.objects), (*OBJECTS, LAMP), "objects", problems)
    places = {thing.name: index for index, thing in enumerate(receptacles)}
    for name, state in game.receptacles.items():
        if state == "closed" and name.partition(" ")[0] not in OPENABLE:
            problems.append(
                f"field receptacles.{name}: only {_list(sorted(OPENABLE))} can be closed"
            )
    for name, place in game.objects.items():
        if place not in places:
            problems.append(f"field objects.{name}: there is no receptacle {place!r}")
    problems.extend(_goal_problems(game.goal, receptacles, objects))
    if problems:
        raise InputError(f"household params: {'; '.join(problems)}", problems=tuple(problems))
    return World(
        receptacles=receptacles,
        objects=objects,
        where=tuple(places[game.objects[thing.name]] for thing in objects),
        opened=sum(
            1 << i
            for i, thing in enumerate(receptacles)
            if thing.kind in OPENABLE and game.receptacles[thing.name] == "open"
        ),
        goal=Goal(game.goal.type, game.goal.object, game.goal.target),
        horizon=game.horizon,
        hint=game.hint,
    )


def params_of(world: World) -> Params:
    """The JSON of a game; `world_of` reads it back to an equal world."""
    names = [thing.name for thing in world.receptacles]
    return {
        "receptacles": {
            name: "open" if world.is_open(world.start(), i) else "closed"
            for i, name in enumerate(names)
        },
        "objects": {
            thing.name: names[place]
            for thing, place in zip(world.objects, world.where, strict=True)
            if place != NOWHERE
        },
        "goal": {
            "type": world.goal.type,
            "object": world.goal.object,
            "target": world.goal.target,
        },
        "horizon": world.horizon,
        "hint": world.hint,
    }


def _things(
    names: list[str], kinds: tuple[str, ...], where: str, problems: list[str]
) -> tuple[Thing, ...]:
    out = []
    for name in names:
        found = _NAME.fullmatch(name)
        if found is None:
            problems.append(
                f"field {where}.{name}: a name is a kind and a number 1..{MAX_PER_KIND}"
            )
        elif found[1] not in kinds:
            problems.append(f"field {where}.{name}: unknown kind, known are {_list(kinds)}")
        else:
            out.append(Thing(found[1], int(found[2])))
    return tuple(sorted(out))


def _goal_problems(
    goal: GoalParams, receptacles: tuple[Thing, ...], objects: tuple[Thing, ...]
) -> list[str]:
    out = []
    kinds = {thing.kind for thing in receptacles}
    copies = sum(thing.kind == goal.object for thing in objects)
    needed = 2 if goal.type == "two" else 1
    if goal.object not in OBJECTS or copies < needed:
        out.append(f"field goal.object: the room has {copies} {goal.object!r}, needed {needed}")
    elif goal.object not in SUITS[goal.type]:
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
