"""Options of the family, and the parameters of a task: the whole room as compact JSON.

    {"receptacles": {"fridge 1": "closed", "shelf 1": "open", "sinkbasin 1": "open"},
     "objects": {"mug 1": "fridge 1"},
     "goal": {"type": "clean", "object": "mug", "target": "shelf"},
     "horizon": 24, "hint": false}

Rewriting may add help: `"until": "clean"` ends the goal there, `"remind": true` names the treatment in the instruction, and
`"played": ["go fridge 1", ...]` are commands that were played before the episode begins.
A game under ALFWorld's rules has `"rules": "alfworld"`, no hint, and `"phrase"`: which of two sentences announces its goal.
The order of keys carries no meaning: things are sorted by kind and number, under ALFWorld's rules as its engine lists them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from environments.household.catalogue import (
    ALFWORLD,
    DEVICE,
    GOAL_TYPES,
    OPENABLE,
    ROOM_KINDS,
    SIMPLE,
    Catalogue,
    GoalType,
    RoomKind,
    Rules,
)
from environments.household.world import NOWHERE, TREATMENTS, Command, Goal, Thing, Until, World
from triforge.environments import kit
from triforge.environments.kit import ORDERED, Strict, parse_model, part_of
from triforge.errors import InputError
from triforge.types import Params

Span = Annotated[
    list[Annotated[int, Field(ge=0, le=32)]], Field(min_length=2, max_length=2), ORDERED
]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


GUIDE: Final = (
    "You act in a household. Each turn, give one command. You can go to places, open and close them, take one thing at "
    "a time, move it to a place, clean it with a sinkbasin, heat it with a microwave, cool it with a fridge, and use "
    "a lamp. Finish the task in as few commands as you can. {answer}"
)


def _known(what: str, known: Sequence[str]) -> AfterValidator:
    def check(kinds: list[str]) -> list[str]:
        if unknown := sorted(set(kinds) - set(known)):
            raise ValueError(f"unknown {what} kinds {unknown}, known are {', '.join(known)}")
        return kinds

    return AfterValidator(check)


class _RoomOptions(Strict):
    goals: list[GoalType] = Field(default_factory=lambda: list(GOAL_TYPES), min_length=1)
    closed: Share = 1.0
    lamps: Share = 0.3
    commands: Span | None = None


class GeneratorOptions(_RoomOptions):
    """Options of the generator under the simple rules; README.md explains each."""

    rules: Literal["simple"] = "simple"
    receptacles: Span = Field(default_factory=lambda: [5, 8])
    per_kind: int = Field(default=1, ge=1, le=SIMPLE.most)
    distractors: Span = Field(default_factory=lambda: [2, 5])
    objects: Annotated[list[str], _known("object", SIMPLE.objects)] = Field(
        default_factory=lambda: list(SIMPLE.objects), min_length=1
    )
    kinds: Annotated[list[str], _known("receptacle", SIMPLE.receptacles)] = Field(
        default_factory=lambda: list(SIMPLE.receptacles), min_length=1
    )
    openable_share: Share | None = None
    duplicates: Share = 0.2
    hint: Share = 0.0
    horizon: int = Field(default=24, ge=1, le=1000)


class HouseOptions(_RoomOptions):
    """Options of the generator under ALFWorld's rules; README.md explains each."""

    rules: Literal["alfworld"]
    rooms: list[RoomKind] = Field(default_factory=lambda: list(ROOM_KINDS), min_length=1)
    receptacles: Span = Field(default_factory=lambda: [12, 24])
    things: Span = Field(default_factory=lambda: [8, 16])
    copies: int = Field(default=3, ge=1, le=9)
    second_phrase: Share = 0.5
    horizon: int = Field(default=50, ge=1, le=1000)


class AnswerOptions(kit.AnswerOptions):
    """How a response is read."""

    def explained(self) -> str:
        """Return the system message, which explains commands and answers."""
        return self.system(GUIDE, "the command")

    def action(self, response: str, *, exact: bool) -> str:
        """Return the command of a response.

        Case does not matter; blanks between words do where commands are `exact`, as in ALFWorld's engine.
        """
        text = part_of(response, self.answer).lower()
        return text.strip() if exact else " ".join(text.split())


class PlayOptions(AnswerOptions):
    """Options of a run: full sentences, or single words for tiny models."""

    wording: Literal["alfworld", "terse"] = "alfworld"
    labels: Literal["sensible", "progress"] = "sensible"


class GoalParams(Strict):
    """The goal as JSON."""

    type: GoalType
    object: str
    target: str


class GameParams(Strict):
    """One game as JSON; see the module's example."""

    rules: Rules = "simple"
    receptacles: dict[str, Literal["open", "closed"]] = Field(min_length=1, max_length=64)
    objects: dict[str, str] = Field(min_length=1, max_length=128)
    goal: GoalParams
    phrase: Literal[0, 1] = 0
    horizon: int | None = Field(default=None, ge=1, le=1000)
    hint: bool = False
    until: Until = ""
    remind: bool = False
    played: list[str] = Field(default_factory=list, max_length=100)


def world_of(params: Params) -> World:
    """Read and check a game."""
    game = parse_model(GameParams, params, "household params")
    catalogue = ALFWORLD if game.rules == "alfworld" else SIMPLE
    foreign = ("hint", "until", "remind") if catalogue.strict else ("phrase",)
    problems = [
        f"field {name}: unknown under the rules {game.rules!r}"
        for name in foreign
        if name in params
    ]
    carried = (*catalogue.objects, *catalogue.lamps)
    receptacles = _things(
        "receptacles", game.receptacles, catalogue.receptacles, catalogue, problems
    )
    objects = _things("objects", game.objects, carried, catalogue, problems)
    places = {thing.name: index for index, thing in enumerate(receptacles)}
    problems += _place_problems(game, catalogue, places)
    problems += _goal_problems(game, catalogue, receptacles, objects)
    if problems:
        raise InputError(f"household params: {'; '.join(problems)}", problems=tuple(problems))
    world = World(
        receptacles=receptacles,
        objects=objects,
        where=tuple(places[game.objects[thing.name]] for thing in objects),
        opened=sum(
            1 << i
            for i, thing in enumerate(receptacles)
            if thing.kind in OPENABLE and game.receptacles[thing.name] == "open"
        ),
        goal=Goal(game.goal.type, game.goal.object, game.goal.target, game.until),
        horizon=game.horizon or (50 if catalogue.strict else 24),
        hint=game.hint,
        catalogue=catalogue,
        phrase=game.phrase,
        remind=game.remind,
    )
    return replace(world, played=_played(world, game.played)) if game.played else world


def _played(world: World, texts: Sequence[str]) -> tuple[Command, ...]:
    """Return the commands of texts; each must be admissible after those before it."""
    commands: list[Command] = []
    state = world.start()
    for number, text in enumerate(texts):
        known = {world.named(command): command for command in world.admissible(state)}
        after = world.apply(state, known[text]) if text in known else None
        if after is None:
            expected = ", ".join(sorted(known))
            raise InputError(
                f"household params: field played.{number}: given {text!r}, expected one of {expected}"
            )
        commands.append(known[text])
        state = after
    return tuple(commands)


def listed(thing: Thing) -> tuple[str, int]:
    """Return the key by which ALFWorld's engine sorts things of a room: by the id behind the name, highest number first.

    The ids of basins begin with their sink or bathtub.
    """
    return f"{thing.kind.removesuffix('basin')}_", -thing.number


def params_of(world: World) -> Params:
    """Return the JSON of a game; `world_of` reads it back to an equal world."""
    strict, names = world.catalogue.strict, [thing.name for thing in world.receptacles]
    aid: Params = {
        "until": world.goal.until,
        "remind": world.remind,
        "played": [world.named(command) for command in world.played],
    }
    first: Params = {"rules": world.catalogue.rules} if strict else {}
    last: Params = {"phrase": world.phrase} if strict else {"hint": world.hint}
    return {
        **first,
        "receptacles": {
            name: "open" if world.is_open(world.before[0], i) else "closed"
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
        **{name: value for name, value in aid.items() if value},
    }


_NAME: Final = re.compile(r"([a-z]+) ([1-9][0-9]?)")


def _things(
    field: str,
    names: Iterable[str],
    kinds: Sequence[str],
    catalogue: Catalogue,
    problems: list[str],
) -> tuple[Thing, ...]:
    """Return the named things in their order; faults of names are added to `problems`."""
    out: list[Thing] = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or int(match[2]) > catalogue.most:
            problems.append(
                f"field {field}.{name}: a name is a kind and a number 1..{catalogue.most}"
            )
        elif match[1] not in kinds:
            problems.append(f"field {field}.{name}: unknown kind, known are {', '.join(kinds)}")
        else:
            out.append(Thing(match[1], int(match[2])))
    if not catalogue.strict:
        return tuple(sorted(out))
    counts = Counter(thing.kind for thing in out)  # ALFWorld's engine numbers them without gaps
    problems += [
        f"field {field}.{thing.name}: the room has {counts[thing.kind]} of this kind, numbers go from 1 on"
        for thing in sorted(out)
        if thing.number > counts[thing.kind]
    ]
    return tuple(sorted(out, key=listed))


def _place_problems(game: GameParams, catalogue: Catalogue, places: dict[str, int]) -> list[str]:
    out = []
    for name, state in game.receptacles.items():
        if state == "closed" and name.partition(" ")[0] not in OPENABLE:
            known = ", ".join(sorted(OPENABLE))
            out.append(f"field receptacles.{name}: only {known} can be closed")
    for name, place in game.objects.items():
        kind = name.partition(" ")[0]
        if place not in places:
            out.append(f"field objects.{name}: there is no receptacle {place!r}")
        elif kind in catalogue.homes and not catalogue.fits(kind, place.partition(" ")[0]):
            known = ", ".join(catalogue.homes[kind])
            out.append(f"field objects.{name}: {place!r} does not hold it, only {known} do")
    return out


def _goal_problems(
    game: GameParams, catalogue: Catalogue, receptacles: Iterable[Thing], objects: Sequence[Thing]
) -> list[str]:
    goal, out = game.goal, []
    kinds = {thing.kind for thing in receptacles}
    copies = sum(thing.kind == goal.object for thing in objects)
    needed = Goal(goal.type, goal.object, goal.target).copies
    if goal.object not in catalogue.objects or copies < needed:
        out.append(f"field goal.object: the room has {copies} {goal.object!r}, needed {needed}")
    elif goal.object not in catalogue.suits[goal.type]:
        out.append(f"field goal.object: {goal.object!r} does not suit the goal {goal.type!r}")
    if goal.type == "look":
        if goal.target not in catalogue.lamps or all(o.kind != goal.target for o in objects):
            known = " or ".join(map(repr, catalogue.lamps))
            out.append(f"field goal.target: look needs a {known} in the room as its target")
    elif goal.target not in kinds:
        out.append(f"field goal.target: the room has no {goal.target!r}")
    if game.until not in ("", "take", goal.type):
        out.append(f"field until: given {game.until!r}, which is no sub-goal of {goal.type!r}")
    if game.remind and goal.type not in TREATMENTS:
        out.append(f"field remind: {goal.type!r} has no treatment")
    device = DEVICE.get(goal.type)
    if device is not None and device not in kinds:
        out.append(f"field goal.type: {goal.type!r} needs a {device!r} in the room")
    return out
