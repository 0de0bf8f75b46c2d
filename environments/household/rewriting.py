"""Rewriting a task: closed choices of goal, object, target and hint in the same room, and the proofs that one is true.

Everything a rewriter may answer is enumerated, planned and compared beforehand, so a decoder that is held to
`combinations` cannot write an impossible task. `check` proves it once more from the stored task alone, and reads the
announced sentence back by its own grammar: a goal that was changed without its instruction does not pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from environments.household.catalogue import DEVICE, GOAL_TYPES
from environments.household.episode import Episode
from environments.household.params import PlayOptions, params_of, world_of
from environments.household.planner import plan
from environments.household.wording import announce, place_name, read_announcement, series
from environments.household.world import Goal, World
from triforge.errors import InputError
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.types import CheckResult, Direction, Params, Task

FIELDS: Final = ("goal", "object", "target", "hint")

MEANING: Final[dict[str, str]] = {
    "place": "bring the object to the target",
    "look": "hold the object beside the lit target",
    "clean": "wash the object in the sinkbasin, then bring it to the target",
    "heat": "heat the object with the microwave, then bring it to the target",
    "cool": "cool the object with the fridge, then bring it to the target",
    "two": "bring two such objects to the target, one after the other",
}


def menu(task: Task, direction: Direction) -> RewriteMenu:
    """The closed choices for one direction; every combination is solvable and differs from the present goal.

    harder: a longer shortest plan, or an equally long one with a rarer goal or kind of object; never with a hint.
    easier: the reverse; with or without a hint, and the present goal with a hint if it had none. ALFWorld's rules know no
    hints.
    """
    world = world_of(task.params)
    combinations = tuple(_combinations(world, direction))
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


def _combinations(world: World, direction: Direction) -> list[dict[str, str]]:
    now = plan(world)
    if now is None:
        return []
    present = _difficulty(world, world.goal, len(now))
    hints = not world.catalogue.strict
    out: list[dict[str, str]] = []
    for goal in goals_of(world):
        if goal == world.goal:
            if hints and world.hint == (direction == "harder"):
                out.append(_answer(goal, hint=not world.hint))
            continue
        steps = plan(world, goal)
        if not steps or len(steps) > world.horizon:
            continue
        difficulty = _difficulty(world, goal, len(steps))
        if direction == "harder" and difficulty > present:
            out.append(_answer(goal, hint=False))
        elif direction == "easier" and difficulty < present:
            out += [_answer(goal, hint=hint) for hint in (False, True) if hints or not hint]
    return out


def _difficulty(world: World, goal: Goal, steps: int) -> tuple[int, int, int]:
    """Length of the shortest plan, then rank of the goal, then rank of the kind of object (common ones are low)."""
    return steps, GOAL_TYPES.index(goal.type), world.catalogue.objects.index(goal.object)


def _answer(goal: Goal, *, hint: bool) -> dict[str, str]:
    values = (goal.type, goal.object, goal.target, "yes" if hint else "no")
    return dict(zip(FIELDS, values, strict=True))


def apply(task: Task, answer: dict[str, str]) -> TaskDraft:
    """The task that follows from an answer: the same room, the new goal, the instruction written anew."""
    if set(answer) != set(FIELDS):
        raise InputError(
            f"household rewrite: fields were {sorted(answer)}, expected exactly {', '.join(FIELDS)}"
        )
    hint = answer["hint"]
    if hint not in ("yes", "no"):
        raise InputError(f"household rewrite: field hint was {hint!r}, expected yes or no")
    goal = {"type": answer["goal"], "object": answer["object"], "target": answer["target"]}
    params: Params = {**task.params, "goal": dict(goal)}
    if "rules" not in params:
        params["hint"] = hint == "yes"
    elif hint == "yes":
        raise InputError(
            "household rewrite: field hint was 'yes', but ALFWorld's rules know no hint"
        )
    world = world_of(params)
    return TaskDraft(params=params_of(world), instruction=announce(world), kind=world.goal.type)


def drift(root: Params, candidate: Params) -> float:
    """The edit distance of two tasks in the same room, as a share: how many of goal, object, target and hint differ."""
    worlds = map(world_of, (root, candidate))
    before, after = (_answer(world.goal, hint=world.hint) for world in worlds)
    return sum(before[name] != after[name] for name in FIELDS) / len(FIELDS)


def check(parent: Task, candidate: TaskDraft) -> list[CheckResult]:
    """Prove a candidate: well formed, differs, same room, not yet won, solvable, instruction and verifier agree."""
    try:
        before, world = world_of(parent.params), world_of(candidate.params)
    except InputError as error:
        return [CheckResult(name="well_formed", passed=False, detail=error.detail)]
    same_room = replace(world, goal=before.goal, hint=before.hint, horizon=before.horizon) == before
    differs = (world.goal, world.hint) != (before.goal, before.hint)
    steps = plan(world)
    fits = steps is not None and len(steps) <= world.horizon
    length = "none" if steps is None else str(len(steps))
    agrees, detail = _agrees(world, candidate.instruction)
    results = (
        ("well_formed", True, ""),
        ("differs", differs, candidate.instruction),
        ("same_room", same_room, ""),
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
