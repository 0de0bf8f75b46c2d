"""Seeded games of both sets of rules: rooms drawn under the options, each proved solvable and not won at reset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final

from environments.household.catalogue import (
    ALFWORLD,
    DEVICE,
    HOMES,
    LAMP,
    LAMP_HOMES,
    OPENABLE,
    ROOMS,
    SUITS,
    Furniture,
    GoalType,
)
from environments.household.params import GeneratorOptions, HouseOptions, listed
from environments.household.planner import plan
from environments.household.world import Goal, Thing, World
from triforge.environments.kit import parse_model
from triforge.errors import InputError
from triforge.types import Params


def draw_house(rng: Random, wanted: HouseOptions) -> World | None:
    """A room, or None when the drawn parts do not go together."""
    goal_type = rng.choice(wanted.goals)
    rooms = [ROOMS[kind] for kind in wanted.rooms if _goal_fits(ROOMS[kind], goal_type)]
    if not rooms:
        return None
    room = rng.choice(rooms)
    drawn = _house_goal(rng, room, goal_type)
    if drawn is None:
        return None
    goal, source = drawn
    receptacles = _numbered(_furniture(rng, room, wanted, goal, source), listed)
    things = _house_things(rng, room, wanted, goal, receptacles)
    if things is None:
        return None
    objects = _numbered((kind for kind, _ in things), listed)
    places = sorted(things, key=lambda thing: listed(Thing(thing[0], 0)))
    opened = _opened(rng, receptacles, ALFWORLD.openable, wanted.closed)
    return World(
        receptacles=receptacles,
        objects=objects,
        where=tuple(place for _, place in places),
        opened=opened,
        goal=goal,
        horizon=wanted.horizon,
        catalogue=ALFWORLD,
        phrase=int(rng.random() < wanted.second_phrase),
    )


def _goal_fits(room: Furniture, goal_type: GoalType) -> bool:
    if goal_type == "look":
        return room.lamps
    return goal_type not in DEVICE or DEVICE[goal_type] in room.most


def _house_goal(rng: Random, room: Furniture, goal_type: GoalType) -> tuple[Goal, str] | None:
    """The goal, and a kind of receptacle where its object may lie at reset."""
    kinds = [kind for kind in room.objects if kind in ALFWORLD.suits[goal_type]]
    if not kinds:
        return None
    kind = rng.choice(kinds)
    homes = [home for home in ALFWORLD.homes[kind] if home in room.most]
    if goal_type == "look":
        return Goal("look", kind, LAMP), rng.choice(homes)
    targets = [home for home in homes if home != DEVICE.get(goal_type)]
    if not targets or len(homes) < 2:
        return None
    target = rng.choice(targets)
    return Goal(goal_type, kind, target), rng.choice([home for home in homes if home != target])


def _furniture(
    rng: Random, room: Furniture, wanted: HouseOptions, goal: Goal, source: str
) -> list[str]:
    """Kinds of receptacle: what such a room always has, what the goal needs, and others up to the drawn number."""
    needed = {*room.always, source}
    if goal.type == "look":
        needed.add(rng.choice([home for home in ALFWORLD.homes[LAMP] if home in room.most]))
    else:
        needed.add(goal.target)
    out = sorted(needed)
    spare = [
        kind for kind, most in room.most.items() for _ in range(most - out.count(kind)) if most
    ]
    more = max(0, rng.randint(*wanted.receptacles) - len(out))
    return out + rng.sample(spare, min(more, len(spare)))


def _house_things(
    rng: Random, room: Furniture, wanted: HouseOptions, goal: Goal, receptacles: tuple[Thing, ...]
) -> list[tuple[str, int]] | None:
    """(kind, receptacle) of every object: the goal's, a lamp, others. The goal's do not lie in its target."""

    def places(kind: str, but: str = "") -> list[int]:
        homes = ALFWORLD.homes[kind]
        return [i for i, r in enumerate(receptacles) if r.kind in homes and r.kind != but]

    sources = places(goal.object, goal.target)
    copies = 2 if goal.type == "two" else 1
    if not sources:
        return None
    out = [(goal.object, rng.choice(sources)) for _ in range(copies)]
    lamps = places(LAMP) if room.lamps else []
    if lamps and (goal.type == "look" or rng.random() < wanted.lamps):
        out.append((LAMP, rng.choice(lamps)))
    size = rng.randint(*wanted.things)
    counts = Counter(kind for kind, _ in out)
    free = [kind for kind in room.objects if kind != goal.object and places(kind)]
    while len(out) < size and free:
        kind = rng.choice(free)
        counts[kind] += 1
        out.append((kind, rng.choice(places(kind))))
        if counts[kind] >= wanted.copies:
            free.remove(kind)
    return out


TRIES: Final = 200
TRIES_TO_FIT: Final = 2000  # where the length of the plan is asked for


def generate(*, count: int, seed: int, options: Params) -> list[World]:
    """Make `count` games. Game i depends on the seed, i and the options only, so a longer list starts the same."""
    if count < 0:
        raise InputError(f"household generate: count was {count}, expected 0 or more")
    draw, wanted = drawn_by(options)
    out = []
    for index in range(count):
        rng = Random(f"household {seed} {index}")  # noqa: S311
        out.append(solvable_game(rng, wanted, draw))
    return out


def drawn_by(
    options: Params,
) -> tuple[Callable[[Random], World | None], GeneratorOptions | HouseOptions]:
    """What draws one room under these options, solvable or not, and the options themselves."""
    if options.get("rules") == "alfworld":
        house = parse_model(HouseOptions, options, "household options")
        return (lambda rng: draw_house(rng, house)), house
    wanted = parse_model(GeneratorOptions, options, "household options")
    return (lambda rng: _draw(rng, wanted)), wanted


def solvable_game(
    rng: Random, wanted: GeneratorOptions | HouseOptions, draw: Callable[[Random], World | None]
) -> World:
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


def _draw(rng: Random, wanted: GeneratorOptions) -> World | None:
    goal = _draw_goal(rng, wanted)
    if goal is None:
        return None
    kinds = _draw_kinds(rng, wanted, goal)
    if kinds is None:
        return None
    receptacles = _numbered(kinds)
    objects = _draw_objects(rng, wanted, goal, receptacles)
    if objects is None:
        return None
    opened = _opened(rng, receptacles, OPENABLE, wanted.closed)
    objects.sort()
    names = _numbered([kind for kind, _ in objects])
    return World(
        receptacles=receptacles,
        objects=names,
        where=tuple(place for _, place in objects),
        opened=opened,
        goal=goal,
        horizon=wanted.horizon,
        hint=rng.random() < wanted.hint,
    )


def _draw_goal(rng: Random, wanted: GeneratorOptions) -> Goal | None:
    kind_of_goal = rng.choice(wanted.goals)
    fitting = [kind for kind in wanted.objects if kind in SUITS[kind_of_goal]]
    if not fitting:
        return None
    kind = rng.choice(fitting)
    if kind_of_goal == "look":
        return Goal("look", kind, LAMP)
    targets = [home for home in HOMES[kind] if home in wanted.kinds]
    return Goal(kind_of_goal, kind, rng.choice(targets)) if targets else None


def _draw_kinds(rng: Random, wanted: GeneratorOptions, goal: Goal) -> list[str] | None:
    """The kinds of the room's receptacles: those that the goal needs, then others up to the drawn number."""
    sources = [home for home in HOMES[goal.object] if home in wanted.kinds and home != goal.target]
    if not sources:
        return None
    needed = {rng.choice(sources)}
    if goal.type == "look":
        lamp_homes = [home for home in LAMP_HOMES if home in wanted.kinds]
        if not lamp_homes:
            return None
        needed.add(rng.choice(lamp_homes))
    else:
        needed.add(goal.target)
    if device := DEVICE.get(goal.type):
        if device not in wanted.kinds:
            return None
        needed.add(device)
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


def _draw_objects(
    rng: Random, wanted: GeneratorOptions, goal: Goal, receptacles: tuple[Thing, ...]
) -> list[tuple[str, int]] | None:
    """(kind, receptacle) of every object: the goal's, lamps, distractors."""

    def homes(kind: str, allowed: tuple[str, ...], but: str = "") -> list[int]:
        places = [i for i, thing in enumerate(receptacles) if thing.kind in allowed]
        return [i for i in places if receptacles[i].kind != but] if kind else places

    sources = homes(goal.object, HOMES[goal.object], goal.target)
    if not sources:
        return None
    out = [(goal.object, rng.choice(sources)) for _ in range(2 if goal.type == "two" else 1)]
    lamp_places = homes(LAMP, LAMP_HOMES)
    if lamp_places and (goal.type == "look" or rng.random() < wanted.lamps):
        out.append((LAMP, rng.choice(lamp_places)))
    others = [k for k in wanted.objects if k != goal.object and homes(k, HOMES[k])]
    distractors: list[str] = []
    for _ in range(rng.randint(*wanted.distractors) if others else 0):
        twice = bool(distractors) and rng.random() < wanted.duplicates
        kind = rng.choice(distractors if twice else others)
        if distractors.count(kind) < 2:
            distractors.append(kind)
            out.append((kind, rng.choice(homes(kind, HOMES[kind]))))
    return out


def _numbered(
    kinds: Iterable[str], order: Callable[[Thing], Any] | None = None
) -> tuple[Thing, ...]:
    """The kinds as things with numbers; by kind and number, or as ALFWorld's engine lists them."""
    counts: Counter[str] = Counter()
    out = []
    for kind in kinds:
        counts[kind] += 1
        out.append(Thing(kind, counts[kind]))
    return tuple(sorted(out, key=order))


def _opened(
    rng: Random, receptacles: tuple[Thing, ...], openable: frozenset[str], closed: float
) -> int:
    """Which receptacles are open at reset, as a bit mask."""
    at_reset = enumerate(receptacles)
    return sum(1 << i for i, r in at_reset if r.kind in openable and rng.random() >= closed)
