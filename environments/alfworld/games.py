"""Games for the real engine: written as a PDDL problem, kept only when the engine lets their plan win."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

from pydantic import Field, JsonValue

from environments.alfworld.engine import Engine
from environments.household.catalogue import ALFWORLD, CONTAINERS, SLICEABLE, GoalType
from environments.household.generator import drawn_by, solvable_game
from environments.household.params import AnswerOptions, HouseOptions
from environments.household.planner import plan
from environments.household.wording import Exact, announce
from environments.household.world import Goal, Thing, World
from triforge.environments.kit import Strict
from triforge.errors import InputError


class GeneratorOptions(HouseOptions):
    """Which games: all options of the household under ALFWorld's rules, and three more; README.md explains each option."""

    rules: Literal["alfworld"] = "alfworld"
    source: Literal["generated", "files"] = "generated"
    folder: str = "json_2.1.1/train"
    tries: int = Field(default=20, ge=1, le=1000)


class PlayOptions(AnswerOptions):
    """How a game is played; with `memo` the engine's process remembers what it computes again and again."""

    memo: bool = True


class FileGoal(Strict):
    """Another goal than that of the game file, in the household's words."""

    type: GoalType
    object: str = Field(pattern=r"^[a-z]{1,40}$")
    target: str = Field(pattern=r"^[a-z]{1,40}$")


class GameParams(Strict):
    """A task: `game` is a household game under ALFWorld's rules; or `file` names a game file, its bytes, the horizon, maybe a goal."""

    game: dict[str, JsonValue] | None = None
    file: str | None = None
    sha256: str | None = None
    horizon: int | None = Field(default=None, ge=1, le=1000)
    goal: FileGoal | None = None


TASK_TYPES: Final[dict[GoalType, str]] = {
    "place": "pick_and_place_simple", "look": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep", "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep", "two": "pick_two_obj_and_place",
}  # fmt: skip
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
        + f"\n)\n(:goal {formula(world.goal)})\n)\n"
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
        if thing.kind in ALFWORLD.lamps:
            out.append(f"(toggleable {name})")
            continue
        out.append(f"(pickupable {name})")
        out.extend(
            f"({fact} {name})" for sort, fact, _ in _STATES if thing.kind in ALFWORLD.suits[sort]
        )
        if thing.kind in CONTAINERS:
            out.append(f"(isreceptacleobject {name})")
        if thing.kind in SLICEABLE:
            out.append(f"(sliceable {name})")
    return out


def formula(goal: Goal) -> str:
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


_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """What became of the games that were drawn: how many were kept, and why the others were not."""

    kept: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """As in "58 kept, 2 rejected (2: the engine cannot load the game ...)"."""
        reasons = "; ".join(f"{number}: {why}" for why, number in self.rejected.most_common())
        return f"{self.kept} kept, {self.rejected.total()} rejected{f' ({reasons})' if reasons else ''}"


def proved_games(
    engine: Engine, *, count: int, seed: int, wanted: GeneratorOptions, tally: Tally
) -> Iterator[World]:
    """Draw `count` games that the engine lets win. Game i depends on the seed, i and the options only; `tally` is kept up to date."""
    draw, house = drawn_by(wanted.model_dump(mode="json", exclude={"source", "folder", "tries"}))
    for index in range(count):
        for attempt in range(wanted.tries):
            world = solvable_game(Random(f"alfworld {seed} {index} {attempt}"), house, draw)  # noqa: S311
            why = why_not(engine, world)
            if why is None:
                break
            tally.rejected[why] += 1
            _log.warning("alfworld: game %d of seed %d was rejected: %s", index, seed, why)
        else:
            raise InputError(
                f"alfworld options: field tries: the engine rejected {wanted.tries} games in a row ({tally}); raise it or "
                "change the other options"
            )
        tally.kept += 1
        yield world


def why_not(engine: Engine, world: World) -> str | None:
    """Why the engine does not let a game win by its plan, or None when it does."""
    steps = plan(world)
    if not steps:
        return "it has no plan"
    wording = Exact()
    try:
        game = engine.start(problem=problem(world), task=announce(world))
    except InputError as error:
        return error.detail
    try:
        if game.first.won:
            return "it is won at reset"
        for number, step in enumerate(steps, start=1):
            seen = game.step(wording.command(world, step))
            if seen.won != (number == len(steps)):
                return f"won is {seen.won} after {number} of {len(steps)} planned commands"
    finally:
        game.end()
    return None
