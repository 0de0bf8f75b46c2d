"""Rewriting a task: closed choices of a change in the room, a hint, help with the goal, or another goal, and the proofs of the result.

All answers are enumerated, planned and compared beforehand, so a decoder that is held to `combinations` cannot write an
impossible task. They are ordered by how little they change: the room or the hint first, then help with the goal (`ladder`), then
another object or target of the same type of goal, then another type. `check` proves a candidate once more from the stored task alone.

Difficulty is a total order, so that "harder" and "easier" are known before a game is played. The order compares, one after the other:

    load         expected commands of an agent that searches, as a share of the horizon
    look-alikes  objects of other kinds that the same type of goal could be about
    place        the rank of the object's likeliest place among its usual places
    goal, object ranks of the goal's type and of the kind of object (common ones are low)
    reminder     whether the instruction does not name the treatment

Expected commands are the shortest plan and the search: each receptacle without a sought object costs one command (two where its
door is closed), times the chance that a search in random order comes to it too early. A hint saves the search for its object,
played commands for what they have shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from environments.household.catalogue import DEVICE, GOAL_TYPES
from environments.household.episode import Episode
from environments.household.ladder import MAX_RUNGS, harder, is_helped, rungs
from environments.household.params import PlayOptions, params_of, world_of
from environments.household.planner import plan
from environments.household.room_changes import MAX_CHANGES, room_changes, spread
from environments.household.wording import announce, hinted, series
from environments.household.world import NOWHERE, Command, Goal, World
from triforge.environments.kit import closed_menu, expect_fields, proofs
from triforge.errors import InputError
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.types import CheckResult, Direction, Params, Task

Answer = dict[str, str]

FIELDS: Final = ("goal", "object", "target", "hint", "room")
SAME: Final = "same"  # the field `room` of an unchanged room
_HELP: Final = ("hint", "until", "remind", "played")  # parameters of help
OTHER_GOALS: Final = 12  # of the same type of goal, and of other types
MAX_COMBINATIONS: Final = MAX_CHANGES + 1 + MAX_RUNGS + 2 * OTHER_GOALS

Difficulty = tuple[Fraction, int, int, int, int, bool]

MEANING: Final[dict[str, str]] = {
    "place": "bring the object to the target",
    "look": "hold the object beside the lit target",  # words: keep
    "clean": "wash the object in the sinkbasin, then bring it to the target",
    "heat": "heat the object with the microwave, then bring it to the target",
    "cool": "cool the object with the fridge, then bring it to the target",
    "two": "bring two such objects to the target, one after the other",
}


def menu(task: Task, direction: Direction) -> RewriteMenu:
    """Return the closed choices of one direction, at most `MAX_COMBINATIONS`; each is solvable and differs from the task.

    harder: later in the order of `difficulty`, never with a new hint, never of a commoner type of goal. easier: the reverse.
    A task with help of its ladder gets more of it, or the next step back. Under ALFWorld's rules there are no hints and no
    changes of the room.
    """
    world = world_of(task.params)
    answers = (*same_goal(world, direction), *_other_goals(world, direction))
    offered = closed_menu(describe(world), answers)
    ranks: dict[str, Sequence[str]] = {"goal": GOAL_TYPES, "object": world.catalogue.objects}
    sorted_fields = {  # from common to rare
        name: tuple(sorted(offered.fields.get(name, ()), key=rank.index))
        for name, rank in ranks.items()
    }
    return replace(offered, fields={**offered.fields, **sorted_fields} if answers else {})


def describe(world: World) -> str:
    """Describe the room, the goal and the types of goals in compact English for a language model."""
    lines = []
    for rec, thing in enumerate(world.receptacles):
        things = [world.objects[o].name for o, place in enumerate(world.where) if place == rec]
        door = "" if world.is_open(world.before[0], rec) else " (closed)"
        lines.append(f"- {thing.name}{door}: {', '.join(things) or 'empty'}")
    steps = plan(world)
    length = "no plan" if steps is None else f"shortest plan {len(steps)} commands"
    usable = dict.fromkeys(goal.type for goal in goals_of(world))
    meaning = "; ".join(f"{name} = {MEANING[name]}" for name in usable)
    return (
        f"Room with {series([thing.name for thing in world.receptacles])}:\n"
        + "\n".join(lines)
        + f"\nPresent task: {announce(world)} ({length}, at most {world.horizon} steps)."
        + (f"\nPlayed before: {', '.join(map(world.named, world.played))}." if world.played else "")
        + f"\nGoals: {meaning}."
        + f"\nRoom: {SAME} leaves it; start, stop and remind help with a sub-goal; anything else changes it."
    )


def goals_of(world: World) -> Iterator[Goal]:
    """Yield every sensible goal in this room: kinds at hand, device at hand, target a usual place for the object."""
    catalogue = world.catalogue
    copies = Counter(thing.kind for thing in world.objects)
    places = list(dict.fromkeys(thing.kind for thing in world.receptacles))
    lamps = [kind for kind in catalogue.lamps if copies[kind]]
    for goal_type in GOAL_TYPES:
        if goal_type != "look" and DEVICE.get(goal_type, places[0]) not in places:
            continue
        for kind in catalogue.objects:
            homes = catalogue.homes[kind]
            targets = lamps if goal_type == "look" else [p for p in places if p in homes]
            goals = [Goal(goal_type, kind, target) for target in targets]
            if kind in catalogue.suits[goal_type]:
                yield from (goal for goal in goals if copies[kind] >= goal.copies)


def _changes(world: World) -> dict[str, Params]:
    """Return the game after every change that keeps the goal, by name: of the room, or help; of a game with help, of its help."""
    ladder = {rung.name: params_of(rung.world) for rung in rungs(world)}
    return ladder if is_helped(world) else room_changes(world) | ladder


def same_goal(world: World, direction: Direction) -> Iterator[Answer]:
    """Yield the choices that keep the goal: one change of the room, the hint, or help with it; the smallest change first.

    A longer horizon is offered where nothing else is easier: a run's `env_adapter.max_steps` may make it useless.
    """
    now, present = params_of(world), _placed(world)
    if present is None:
        return
    games, helped = _changes(world), is_helped(world)
    if helped and direction == "harder":
        games = {rung.name: games[rung.name] for rung in harder(world)}
    if not (helped or world.catalogue.strict) and world.hint == (direction == "harder"):
        games[SAME] = {**now, "hint": not world.hint}
    order = sorted(games, key=lambda room: drift(now, games[room]))
    longer = [room for room in order if _horizon(games[room]) > world.horizon]
    offered = False
    for room in [*(room for room in order if room not in longer), *longer]:
        after = world_of(games[room])
        if not (offered and room in longer) and _is(direction, present, _placed(after)):
            offered = True
            yield _answer(after.goal, hint=after.hint, room=room)


def _other_goals(world: World, direction: Direction) -> Iterator[Answer]:
    """Yield the choices that change the goal in the room as it is: those of the same type, then others."""
    present = _placed(world)
    if present is None or is_helped(world):
        return
    hints = (True, False) if direction == "easier" and not world.catalogue.strict else (False,)
    rank = GOAL_TYPES.index
    same: list[Answer] = []
    other: list[Answer] = []
    for goal in goals_of(world):
        kept = goal.type == world.goal.type
        wrong_way = (rank(goal.type) < rank(world.goal.type)) == (direction == "harder")
        if goal == world.goal or (wrong_way and not kept):
            continue
        if _is(direction, present, _placed(replace(world, goal=goal, hint=False))):
            (same if kept else other).extend(_answer(goal, hint=hint) for hint in hints)
    now = _answer(world.goal, hint=world.hint)
    for answers in (same, other):
        answers.sort(key=lambda answer: sum(answer[name] != now[name] for name in FIELDS))
        yield from spread(answers, OTHER_GOALS)


def _placed(world: World) -> Difficulty | None:
    """Return the difficulty of a game; None if it is won at reset or cannot be won within its horizon."""
    steps = plan(world)
    return difficulty(world, len(steps)) if steps and len(steps) <= world.horizon else None


def _is(direction: Direction, present: Difficulty, after: Difficulty | None) -> bool:
    if after is None:
        return False
    return after > present if direction == "harder" else after < present


def _answer(goal: Goal, *, hint: bool, room: str = SAME) -> Answer:
    values = (goal.type, goal.object, goal.target, "yes" if hint else "no", room)
    return dict(zip(FIELDS, values, strict=True))


def apply(task: Task, answer: Answer) -> TaskDraft:
    """Return the task of an answer: the room changed, the new goal, the instruction made anew."""
    expect_fields(answer, FIELDS, "household rewrite")
    hint, room = answer["hint"], answer["room"]
    before = world_of(task.params)
    if hint not in (("no",) if before.catalogue.strict else ("yes", "no")):
        raise InputError(
            f"household rewrite: field hint: given {hint!r}, expected yes or no, and no under ALFWorld's rules"
        )
    games = {SAME: params_of(before), **_changes(before)}
    if room not in games:
        known = ", ".join(games)
        raise InputError(f"household rewrite: field room: given {room!r}, expected one of {known}")
    goal: Params = {"type": answer["goal"], "object": answer["object"], "target": answer["target"]}
    hinted: Params = {} if before.catalogue.strict else {"hint": hint == "yes"}
    world = world_of({**games[room], "goal": goal, **hinted})
    return TaskDraft(params=params_of(world), instruction=announce(world), kind=world.goal.type)


def drift(root: Params, candidate: Params) -> float:
    """Return the edit distance of two tasks as a share: goal, object, target, hint, room and each kind of help count a fifth each.

    The room counts by the share of its doors, places of objects and horizon that differ.
    """
    one: dict[str, Any] = dict(root)
    two: dict[str, Any] = dict(candidate)
    goal, _ = _differ(one["goal"], two["goal"])
    rooms = ({**g["receptacles"], **g["objects"], "horizon": g["horizon"]} for g in (one, two))
    changed, facts = _differ(*rooms)
    help_, _ = _differ(*({name: game.get(name) or None for name in _HELP} for game in (one, two)))
    return min(1.0, (goal + help_ + changed / facts) / len(FIELDS))


def _differ(before: dict[str, Any], after: dict[str, Any]) -> tuple[int, int]:
    """Return how many entries differ, and of how many."""
    names = before.keys() | after.keys()
    missing = object()
    differ = [n for n in names if before.get(n, missing) != after.get(n, missing)]
    return len(differ), len(names)


def _horizon(params: Params) -> int:
    horizon: Any = params["horizon"]
    return int(horizon)


def check(parent: Task, candidate: TaskDraft) -> list[CheckResult]:
    """Prove a candidate: well formed, differs, a room of the list, not yet won, solvable, instruction and verifier agree."""
    try:
        before, world = world_of(parent.params), world_of(candidate.params)
    except InputError as error:
        return proofs(("well_formed", False, error.detail))
    games = {SAME: params_of(before), **_changes(before)}
    helped = is_helped(world) or is_helped(before)
    room = params_of(world if helped else replace(world, goal=before.goal, hint=before.hint))
    change = next((name for name, game in games.items() if game == room), None)
    steps = plan(world)
    fits = steps is not None and len(steps) <= world.horizon
    length = "none" if steps is None else str(len(steps))
    announced = announce(world)
    agrees = candidate.instruction == announced and _wins(world, announced, steps or [])
    return proofs(
        ("well_formed", True),
        ("differs", world != before, candidate.instruction),
        ("known_room", change is not None, f"room: {change}" if change else "more than one change"),
        ("not_satisfied_at_reset", not world.won(world.start())),
        ("solvable", fits, f"shortest plan {length}, horizon {world.horizon}"),
        (
            "instruction_agrees",
            agrees,
            f"the goal is announced by {announced!r} and won by its plan",
        ),
    )


def _wins(world: World, announced: str, steps: list[Command]) -> bool:
    """Play a plan; return whether the verifier pays at its last step and not before."""
    episode = Episode(world, PlayOptions(wording="alfworld"), announced)
    won = [bool(episode.play(episode.say(step)).success) for step in steps if not episode.done]
    return len(won) == len(steps) and won[-1:] == [True]


def difficulty(world: World, steps: int) -> Difficulty:
    """Return the place of a game in the order; `steps` is the length of its shortest plan."""
    goal, catalogue = world.goal, world.catalogue
    things = list(zip(world.objects, world.where, strict=True))
    suits = catalogue.suits[goal.type] - {goal.object}
    homes = catalogue.homes[goal.object]
    kinds = [world.receptacles[at].kind for thing, at in things if thing.kind == goal.object]
    ranks = [homes.index(kind) if kind in homes else len(homes) for kind in kinds]
    return (
        (steps + search(world)) / world.horizon,
        sum(thing.kind in suits for thing, _ in things),
        min(ranks, default=0),
        GOAL_TYPES.index(goal.type),
        catalogue.objects.index(goal.object),
        not world.remind,
    )


def search(world: World) -> Fraction:
    """Return the expected commands spent on receptacles without a sought object, in a search in random order."""
    goal, start, hint = world.goal, world.start(), hinted(world)
    seen = {s.at for s in world.before if s.at != NOWHERE and world.is_open(s, s.at)}
    things = list(zip(world.objects, start.where, strict=True))
    mine = [place for thing, place in things if thing.kind == goal.object]
    unknown = {*mine} - {hint, NOWHERE, *seen}
    known = sum(place == NOWHERE or place in seen for place in mine)
    wanted = goal.copies - max(known, hint is not None)
    if goal.type == "look" and not goal.until:
        lamps = {place for thing, place in things if thing.kind == goal.target}
        lamps = set() if lamps & seen else lamps - {hint}
        wanted += bool(lamps)
        unknown = unknown | lamps
    idle = set(range(len(world.receptacles))) - unknown - {hint, *seen}
    spent = sum(1 if world.is_open(start, place) else 2 for place in idle)
    return Fraction(max(0, min(wanted, len(unknown))) * spent, len(unknown) + 1)
