"""Seeded games of both sets of rules: rooms drawn under the options, each solvable and not won at reset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from environments.household.catalogue import (
    ALFWORLD,
    DEVICE,
    LAMP,
    OPENABLE,
    ROOMS,
    SIMPLE,
    Catalogue,
    GoalType,
    RoomPlan,
)
from environments.household.params import GeneratorOptions, HouseOptions, listed
from environments.household.planner import plan
from environments.household.world import Goal, Thing, World
from triforge.environments.kit import parse_model
from triforge.errors import InputError
from triforge.types import Params

Draw = Callable[[Random], World | None]
TRIES: Final = 200
TRIES_TO_FIT: Final = 2000  # where the length of the plan is asked for


def generate(*, count: int, seed: int, options: Params) -> list[World]:
    """Make `count` games. Game i depends on the seed, i and the options only, so a longer list starts the same."""
    wanted: GeneratorOptions | HouseOptions
    if options.get("rules") == "alfworld":
        wanted = house = parse_model(HouseOptions, options, "household options")
        draw: Draw = partial(_draw_house, wanted=house)
    else:
        wanted = simple = parse_model(GeneratorOptions, options, "household options")
        draw = partial(_draw, wanted=simple)
    seeded = (Random(f"household {seed} {index}") for index in range(count))  # noqa: S311
    return [_solvable(rng, wanted, draw) for rng in seeded]


def _solvable(rng: Random, wanted: GeneratorOptions | HouseOptions, draw: Draw) -> World:
    """Draw rooms until one is solvable within the horizon, by a plan as long as `options.commands` asks for."""
    shortest, longest = wanted.commands or (0, wanted.horizon)
    tries = TRIES if wanted.commands is None else TRIES_TO_FIT
    for _ in range(tries):
        world = draw(rng)
        if world is None or world.won(world.start()):
            continue
        steps = plan(world)
        if steps is not None and shortest <= len(steps) <= min(longest, wanted.horizon):
            return world
    raise InputError(
        f"household options: no solvable game found in {tries} draws; raise `receptacles` or `horizon`, or allow more "
        "`kinds`, `objects`, `goals` or `commands`"
    )


# ---- simple rules -----------------------------------------------------------------------------------------------


def _draw(rng: Random, wanted: GeneratorOptions) -> World | None:
    """Draw a room, or return None when the drawn parts do not go together."""
    goal = _draw_goal(rng, wanted)
    kinds = None if goal is None else _draw_kinds(rng, wanted, goal)
    if goal is None or kinds is None:
        return None
    receptacles = _numbered(kinds)
    objects = _goal_objects(rng, SIMPLE, goal, receptacles, LAMP, lamps=wanted.lamps)
    if objects is None:
        return None
    objects += _distractors(rng, wanted, goal, receptacles)
    opened = _opened(rng, receptacles, wanted.closed)
    objects.sort()
    return World(
        receptacles=receptacles,
        objects=_numbered(kind for kind, _ in objects),
        where=tuple(place for _, place in objects),
        opened=opened,
        goal=goal,
        horizon=wanted.horizon,
        hint=rng.random() < wanted.hint,
    )


def _draw_goal(rng: Random, wanted: GeneratorOptions) -> Goal | None:
    goal_type = rng.choice(wanted.goals)
    fitting = [kind for kind in wanted.objects if kind in SIMPLE.suits[goal_type]]
    if not fitting:
        return None
    kind = rng.choice(fitting)
    if goal_type == "look":
        return Goal("look", kind, LAMP)
    targets = [home for home in SIMPLE.homes[kind] if home in wanted.kinds]
    return Goal(goal_type, kind, rng.choice(targets)) if targets else None


def _draw_kinds(rng: Random, wanted: GeneratorOptions, goal: Goal) -> list[str] | None:
    """Draw the kinds of the room's receptacles: those that the goal needs, then others up to the drawn number."""
    homes = SIMPLE.homes[goal.object]
    sources = [home for home in homes if home in wanted.kinds and home != goal.target]
    if not sources:
        return None
    needed = {rng.choice(sources)}
    if goal.type == "look":
        lamp_homes = [home for home in SIMPLE.homes[LAMP] if home in wanted.kinds]
        if not lamp_homes:
            return None
        needed.add(rng.choice(lamp_homes))
    else:
        needed |= {goal.target, DEVICE.get(goal.type, goal.target)}
        if not needed <= set(wanted.kinds):
            return None
    size = rng.randint(*wanted.receptacles)
    if size < len(needed):
        return None
    out = sorted(needed)
    while len(out) < size:
        free = [kind for kind in wanted.kinds if out.count(kind) < wanted.per_kind]
        if wanted.openable_share is not None:
            openable = rng.random() < wanted.openable_share
            free = [kind for kind in free if (kind in OPENABLE) == openable] or free
        if not free:
            break
        out.append(rng.choice(free))
    return out if len(out) >= wanted.receptacles[0] else None


def _distractors(
    rng: Random, wanted: GeneratorOptions, goal: Goal, receptacles: Sequence[Thing]
) -> list[tuple[str, int]]:
    """Draw (kind, receptacle) of objects that the goal does not need."""
    places = {kind: _homes(SIMPLE, receptacles, kind) for kind in wanted.objects}
    others = [kind for kind in wanted.objects if kind != goal.object and places[kind]]
    out: list[tuple[str, int]] = []
    for _ in range(rng.randint(*wanted.distractors) if others else 0):
        drawn = [kind for kind, _ in out]
        twice = bool(drawn) and rng.random() < wanted.duplicates
        kind = rng.choice(drawn if twice else others)
        if drawn.count(kind) < 2:
            out.append((kind, rng.choice(places[kind])))
    return out


# ---- ALFWorld's rules -------------------------------------------------------------------------------------------


def _draw_house(rng: Random, wanted: HouseOptions) -> World | None:
    """Draw a room, or return None when the drawn parts do not go together."""
    goal_type = rng.choice(wanted.goals)
    rooms = [ROOMS[kind] for kind in wanted.rooms if _goal_fits(ROOMS[kind], goal_type)]
    if not rooms:
        return None
    room = rng.choice(rooms)
    drawn = _house_goal(rng, room, goal_type)
    if drawn is None:
        return None
    goal, source = drawn
    receptacles = _numbered(_receptacle_kinds(rng, room, wanted, goal, source), listed)
    lamps = wanted.lamps if room.lamps else None
    lamp = goal.target if goal_type == "look" else rng.choice(ALFWORLD.lamps)
    things = _goal_objects(rng, ALFWORLD, goal, receptacles, lamp, lamps=lamps)
    if things is None:
        return None
    _fill(rng, room, wanted, goal, receptacles, things)
    places = sorted(things, key=lambda thing: listed(Thing(thing[0], 0)))
    return World(
        receptacles=receptacles,
        objects=_numbered((kind for kind, _ in things), listed),
        where=tuple(place for _, place in places),
        opened=_opened(rng, receptacles, wanted.closed),
        goal=goal,
        horizon=wanted.horizon,
        catalogue=ALFWORLD,
        phrase=int(rng.random() < wanted.second_phrase),
    )


def _goal_fits(room: RoomPlan, goal_type: GoalType) -> bool:
    if goal_type == "look":
        return room.lamps
    return goal_type not in DEVICE or DEVICE[goal_type] in room.most


def _house_goal(rng: Random, room: RoomPlan, goal_type: GoalType) -> tuple[Goal, str] | None:
    """Draw the goal, and a kind of receptacle where its object may lie at reset."""
    kinds = [kind for kind in room.objects if kind in ALFWORLD.suits[goal_type]]
    if not kinds:
        return None
    kind = rng.choice(kinds)
    homes = [home for home in ALFWORLD.homes[kind] if home in room.most]
    if goal_type == "look":
        return Goal("look", kind, rng.choice(ALFWORLD.lamps)), rng.choice(homes)
    targets = [home for home in homes if home != DEVICE.get(goal_type)]
    if not targets or len(homes) < 2:
        return None
    target = rng.choice(targets)
    return Goal(goal_type, kind, target), rng.choice([home for home in homes if home != target])


def _receptacle_kinds(
    rng: Random, room: RoomPlan, wanted: HouseOptions, goal: Goal, source: str
) -> list[str]:
    """Draw kinds of receptacle: those of every such room, those of the goal, and others up to the drawn number."""
    target = goal.target
    if goal.type == "look":
        target = rng.choice([home for home in ALFWORLD.homes[target] if home in room.most])
    out = sorted({*room.always, source, target})
    spare = [kind for kind, most in room.most.items() for _ in range(most - out.count(kind))]
    more = max(0, rng.randint(*wanted.receptacles) - len(out))
    return out + rng.sample(spare, min(more, len(spare)))


def _fill(
    rng: Random,
    room: RoomPlan,
    wanted: HouseOptions,
    goal: Goal,
    receptacles: Sequence[Thing],
    things: list[tuple[str, int]],
) -> None:
    """Add (kind, receptacle) of objects of the room until it has the drawn number."""
    size = rng.randint(*wanted.things)
    places = {kind: _homes(ALFWORLD, receptacles, kind) for kind in room.objects}
    counts = Counter(kind for kind, _ in things)
    free = [kind for kind in room.objects if kind != goal.object and places[kind]]
    while len(things) < size and free:
        kind = rng.choice(free)
        counts[kind] += 1
        things.append((kind, rng.choice(places[kind])))
        if counts[kind] >= wanted.copies:
            free.remove(kind)


# ---- both -------------------------------------------------------------------------------------------------------


def _homes(
    catalogue: Catalogue, receptacles: Sequence[Thing], kind: str, but: str = ""
) -> list[int]:
    """Return the receptacles where objects of a kind may lie."""
    homes = catalogue.homes[kind]
    return [i for i, thing in enumerate(receptacles) if thing.kind in homes and thing.kind != but]


def _goal_objects(
    rng: Random,
    catalogue: Catalogue,
    goal: Goal,
    receptacles: Sequence[Thing],
    lamp: str,
    *,
    lamps: float | None,
) -> list[tuple[str, int]] | None:
    """Draw (kind, receptacle) of the goal's objects, outside its target, and of a lamp; None when they have no place.

    `lamps` is the share of rooms with a `lamp` that the goal does not need, None for a room that has none.
    """
    sources = _homes(catalogue, receptacles, goal.object, goal.target)
    if not sources:
        return None
    out = [(goal.object, rng.choice(sources)) for _ in range(goal.copies)]
    places = _homes(catalogue, receptacles, lamp)
    if places and lamps is not None and (goal.type == "look" or rng.random() < lamps):
        out.append((lamp, rng.choice(places)))
    return out


def _numbered(
    kinds: Iterable[str], order: Callable[[Thing], Any] | None = None
) -> tuple[Thing, ...]:
    """Return the kinds as things with numbers, sorted by kind and number, or as ALFWorld's engine lists them."""
    counts: Counter[str] = Counter()
    out = []
    for kind in kinds:
        counts[kind] += 1
        out.append(Thing(kind, counts[kind]))
    return tuple(sorted(out, key=order))


def _opened(rng: Random, receptacles: Sequence[Thing], closed: float) -> int:
    """Draw the receptacles that are open at reset, as a bit mask."""
    at_reset = enumerate(receptacles)
    return sum(1 << i for i, r in at_reset if r.kind in OPENABLE and rng.random() >= closed)
