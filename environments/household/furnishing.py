"""One room of the full house, drawn: a goal, a room in which it can be pursued, furniture, things. Solvable or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

from environments.household.house import ALFWORLD, ROOMS, Furniture
from environments.household.kinds import DEVICE, LAMP, GoalType
from environments.household.options import HouseKnobs
from environments.household.params import listed
from environments.household.world import Goal, Thing, World


def draw(rng: Random, knobs: HouseKnobs) -> World | None:
    """A room, or None when the drawn parts do not go together."""
    goal_type = rng.choice(knobs.goals)
    rooms = [ROOMS[kind] for kind in knobs.rooms if _possible(ROOMS[kind], goal_type)]
    if not rooms:
        return None
    room = rng.choice(rooms)
    drawn = _goal(rng, room, goal_type)
    if drawn is None:
        return None
    goal, source = drawn
    receptacles = _named(_furniture(rng, room, knobs, goal, source))
    things = _things(rng, room, knobs, goal, receptacles)
    if things is None:
        return None
    objects = _named(kind for kind, _ in things)
    places = sorted(things, key=lambda thing: listed(Thing(thing[0], 0)))
    opened = sum(
        1 << i
        for i, thing in enumerate(receptacles)
        if thing.kind in ALFWORLD.openable and rng.random() >= knobs.closed
    )
    return World(
        receptacles=receptacles,
        objects=objects,
        where=tuple(place for _, place in places),
        opened=opened,
        goal=goal,
        horizon=knobs.horizon,
        catalogue=ALFWORLD,
        phrase=int(rng.random() < knobs.second_phrase),
    )


def _possible(room: Furniture, goal_type: GoalType) -> bool:
    if goal_type == "look":
        return room.lamps
    return goal_type not in DEVICE or DEVICE[goal_type] in room.most


def _goal(rng: Random, room: Furniture, goal_type: GoalType) -> tuple[Goal, str] | None:
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
    rng: Random, room: Furniture, knobs: HouseKnobs, goal: Goal, source: str
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
    more = max(0, rng.randint(*knobs.receptacles) - len(out))
    return out + rng.sample(spare, min(more, len(spare)))


def _things(
    rng: Random, room: Furniture, knobs: HouseKnobs, goal: Goal, receptacles: tuple[Thing, ...]
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
    if lamps and (goal.type == "look" or rng.random() < knobs.lamps):
        out.append((LAMP, rng.choice(lamps)))
    size = rng.randint(*knobs.things)
    counts = Counter(kind for kind, _ in out)
    free = [kind for kind in room.objects if kind != goal.object and places(kind)]
    while len(out) < size and free:
        kind = rng.choice(free)
        counts[kind] += 1
        out.append((kind, rng.choice(places(kind))))
        if counts[kind] >= knobs.copies:
            free.remove(kind)
    return out


def _named(kinds: Iterable[str]) -> tuple[Thing, ...]:
    """The kinds as things with numbers, in the order in which ALFWorld's engine lists them."""
    counts: Counter[str] = Counter()
    out = []
    for kind in kinds:
        counts[kind] += 1
        out.append(Thing(kind, counts[kind]))
    return tuple(sorted(out, key=listed))
