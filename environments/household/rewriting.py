"""Rewriting a task: closed choices of a change in the room, a hint, or another goal, and the proofs that one is true.

Everything a rewriter may answer is enumerated, planned and compared beforehand, so a decoder that is held to
`combinations` cannot write an impossible task. The choices come in the order of how little they change: the room or the hint
first, then another object or target of the same type of goal, then another type. `check` proves a candidate once more from the
stored task alone, and reads the announced sentence back by its own grammar: a goal that was changed without its instruction
does not pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from environments.household.catalogue import DEVICE, GOAL_TYPES
from environments.household.difficulty import Difficulty, difficulty
from environments.household.episode import Episode
from environments.household.params import PlayOptions, params_of, world_of
from environments.household.planner import plan
from environments.household.room_changes import MAX_CHANGES, room_changes, spread
from environments.household.wording import announce, place_name, read_announcement, series
from environments.household.world import Goal, World
from triforge.errors import InputError
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.types import CheckResult, Direction, Params, Task

Answer = dict[str, str]

FIELDS: Final = ("goal", "object", "target", "hint", "room")
SAME: Final = "same"  # of the field `room`: as it is
OTHER_GOALS: Final = 12  # of the same type of goal, and of other types
MAX_COMBINATIONS: Final = MAX_CHANGES + 1 + 2 * OTHER_GOALS

MEANING: Final[dict[str, str]] = {
    "place": "bring the object to the target",
    "look": "hold the object beside the lit target",
    "clean": "wash the object in the sinkbasin, then bring it to the target",
    "heat": "heat the object with the microwave, then bring it to the target",
    "cool": "cool the object with the fridge, then bring it to the target",
    "two": "bring two such objects to the target, one after the other",
}


def menu(task: Task, direction: Direction) -> RewriteMenu:
    """The closed choices for one direction, at most `MAX_COMBINATIONS`; every one is solvable and differs from the task.

    harder: later in the order of `difficulty`, never with a new hint, never of a commoner type of goal. easier: the reverse.
    ALFWorld's rules know no hints and no changes of the room.
    """
    world = world_of(task.params)
    combinations = (*same_goal(world, direction), *_other_goals(world, direction))
    ranks: dict[str, Sequence[str]] = {"goal": GOAL_TYPES, "object": world.catalogue.objects}
    fields: dict[str, tuple[str, ...]] = {}
    for name in FIELDS if combinations else ():
        values = list(dict.fromkeys(answer[name] for answer in combinations))
        if name in ranks:  # from common to rare
            values.sort(key=ranks[name].index)
        fields[name] = tuple(values)
    return RewriteMenu(description=describe(world), fields=fields, combinations=combinations)


def describe(world: World) -> str:
    """The room, the goal and what goals mean, in compact English for a language model."""
    lines = []
    for rec, thing in enumerate(world.receptacles):
        things = [world.objects[o].name for o, place in enumerate(world.where) if place == rec]
        door = "" if world.is_open(world.start(), rec) else " (closed)"
        lines.append(f"- {thing.name}{door}: {', '.join(things) or 'empty'}")
    steps = plan(world)
    length = "no plan" if steps is None else f"shortest plan {len(steps)} commands"
    usable = dict.fromkeys(goal.type for goal in goals_of(world))
    meaning = "; ".join(f"{name} = {MEANING[name]}" for name in usable)
    return (
        f"Room with {series([thing.name for thing in world.receptacles])}:\n"
        + "\n".join(lines)
        + f"\nPresent task: {announce(world)} ({length}, at most {world.horizon} steps)."
        + f"\nGoals: {meaning}."
        + ("" if world.catalogue.strict else f"\nRoom: {SAME} leaves it, anything else changes it.")
    )


def goals_of(world: World) -> Iterator[Goal]:
    """Every goal that makes sense in this room: kinds at hand, device at hand, target a usual place for the object."""
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


def same_goal(world: World, direction: Direction) -> Iterator[Answer]:
    """The choices that keep the goal: one change of the room, or the hint; the smallest change first.

    A longer horizon is offered where nothing else is easier: a run's `env_adapter.max_steps` may make it useless.
    """
    now, present = params_of(world), _placed(world)
    if present is None:
        return
    games = room_changes(world)
    if not world.catalogue.strict and world.hint == (direction == "harder"):
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
    """The choices that change the goal in the room as it is: those of the same type, then others."""
    present = _placed(world)
    if present is None:
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
    for found in (same, other):
        found.sort(key=lambda answer: sum(answer[name] != now[name] for name in FIELDS))
        yield from spread(found, OTHER_GOALS)


def _placed(world: World) -> Difficulty | None:
    """How hard a game is; None if it is won at reset or cannot be won within its horizon."""
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
    """The task that follows from an answer: the room changed, the new goal, the instruction written anew."""
    if set(answer) != set(FIELDS):
        raise InputError(
            f"household rewrite: fields were {sorted(answer)}, expected exactly {', '.join(FIELDS)}"
        )
    hint, room = answer["hint"], answer["room"]
    if hint not in ("yes", "no"):
        raise InputError(f"household rewrite: field hint was {hint!r}, expected yes or no")
    before = world_of(task.params)
    games = {SAME: params_of(before), **room_changes(before)}
    if room not in games:
        known = ", ".join(games)
        raise InputError(f"household rewrite: field room was {room!r}, expected one of {known}")
    goal = {"type": answer["goal"], "object": answer["object"], "target": answer["target"]}
    params: Params = {**games[room], "goal": dict(goal)}
    if not before.catalogue.strict:
        params["hint"] = hint == "yes"
    elif hint == "yes":
        raise InputError(
            "household rewrite: field hint was 'yes', but ALFWorld's rules know no hint"
        )
    world = world_of(params)
    return TaskDraft(params=params_of(world), instruction=announce(world), kind=world.goal.type)


def drift(root: Params, candidate: Params) -> float:
    """The edit distance of two tasks as a share: goal, object, target, hint and room count a fifth each.

    The room counts by the share of its doors, places of objects and horizon that differ.
    """
    before, after = _parts(root), _parts(candidate)
    goal = _differ(before.goal, after.goal)[0]
    changed, facts = _differ(before.room, after.room)
    return (goal + (before.hint != after.hint) + changed / facts) / len(FIELDS)


def _differ(before: dict[str, Any], after: dict[str, Any]) -> tuple[int, int]:
    """How many entries differ, and of how many."""
    names = before.keys() | after.keys()
    missing = object()
    differ = [n for n in names if before.get(n, missing) != after.get(n, missing)]
    return len(differ), len(names)


class _Parts(NamedTuple):
    goal: dict[str, Any]
    hint: bool
    room: dict[str, Any]


def _parts(params: Params) -> _Parts:
    game: dict[str, Any] = dict(params)
    room = {**game["receptacles"], **game["objects"], "horizon": game["horizon"]}
    return _Parts(game["goal"], bool(game.get("hint")), room)


def _horizon(params: Params) -> int:
    horizon: Any = params["horizon"]
    return int(horizon)


def check(parent: Task, candidate: TaskDraft) -> list[CheckResult]:
    """Prove a candidate: well formed, differs, a room of the list, not yet won, solvable, instruction and verifier agree."""
    try:
        before, world = world_of(parent.params), world_of(candidate.params)
    except InputError as error:
        return [CheckResult(name="well_formed", passed=False, detail=error.detail)]
    games = {SAME: params_of(before), **room_changes(before)}
    room = params_of(replace(world, goal=before.goal, hint=before.hint))
    change = next((name for name, game in games.items() if game == room), None)
    steps = plan(world)
    fits = steps is not None and len(steps) <= world.horizon
    length = "none" if steps is None else str(len(steps))
    agrees, detail = _agrees(world, candidate.instruction)
    results = (
        ("well_formed", True, ""),
        ("differs", world != before, candidate.instruction),
        ("known_room", change is not None, f"room: {change}" if change else "more than one change"),
        ("not_satisfied_at_reset", not world.won(world.start()), ""),
        ("solvable", fits, f"shortest plan {length}, horizon {world.horizon}"),
        ("instruction_agrees", agrees, detail),
    )
    return [CheckResult(name=name, passed=ok, detail=said) for name, ok, said in results]


def _agrees(world: World, text: str) -> tuple[bool, str]:
    """Read the announced sentence back, plan for it alone and play that plan: the verifier must pay at its last step."""
    announced = read_announcement(text, world)
    if announced is None:
        return False, f"the instruction {text!r} announces no known goal"
    goal, place = announced.goal, announced.place
    if goal != world.goal:
        return False, f"the instruction announces {goal}, the verifier rewards {world.goal}"
    if (place is not None) != world.hint or place not in _hint_places(world):
        return False, f"the hint {place!r} is not where the object is or was not asked for"
    steps = plan(world, goal)
    if not steps:
        return False, "there is no plan for what the instruction announces"
    episode = Episode(world, PlayOptions(wording="alfworld"), text)
    for index, command in enumerate(steps):
        result = episode.play(episode.say(command))
        if result.done and index + 1 < len(steps):
            return False, f"the episode ended after {index + 1} of {len(steps)} announced steps"
    return episode.success, f"playing the announced task wins: {episode.success}"


def _hint_places(world: World) -> set[str | None]:
    if not world.hint:
        return {None}
    pairs = zip(world.objects, world.where, strict=True)
    return {place_name(world, place) for thing, place in pairs if thing.kind == world.goal.object}
