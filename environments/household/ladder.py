"""The ladder of a game: help with its goal, and the way back to the whole task.

    start before heat mug                         the shortest plan is played up to there, and shown
    stop at heat mug                              a sub-goal as a task of its own
    start after take mug and stop at heat mug     both
    remind of heat mug                            the instruction names the treatment and its place

A step is named by sub-goals, in the words of the diagnosis. A game with such help moves on its ladder only; `harder` are its
neighbours with less help.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, get_args

from environments.household.planner import plan
from environments.household.progress import tests
from environments.household.world import TREATMENTS, Command, Until, World

WHOLE: Final = "whole task"
MAX_RUNGS: Final = 16


@dataclass(frozen=True, slots=True)
class Rung:
    """A game on the ladder, and its step."""

    name: str
    world: World


def is_helped(world: World) -> bool:
    """Return whether a game has help of its ladder."""
    return bool(world.played or world.goal.until or world.remind)


def rungs(world: World) -> list[Rung]:
    """Return the ladder of a game from the whole task down, at most `MAX_RUNGS`; empty if the game cannot be won.

    Games under ALFWorld's rules keep ALFWorld's instructions, so only their start changes.
    """
    whole = replace(world, played=(), remind=False, goal=replace(world.goal, until=""))
    steps = plan(whole)
    if steps is None:
        return []
    reached = _reached(whole, steps)
    out = [Rung(WHOLE, whole)]
    if not world.catalogue.strict and whole.goal.type in TREATMENTS:
        name = f"remind of {whole.goal.type} {whole.goal.object}"
        out.append(Rung(name, replace(whole, remind=True)))
    ends: dict[Until, int] = {"": len(steps)}
    if not world.catalogue.strict:
        names = {until: f"{until} {whole.goal.object}" for until in get_args(Until)}
        ends |= {until: reached[name] for until, name in names.items() if name in reached}
    for until, last in sorted(ends.items(), key=lambda end: -end[1]):
        for start, count in _starts(reached).items():
            stop = f"stop at {until} {whole.goal.object}" if until else ""
            name = " and ".join(filter(None, (start, stop)))
            if name and count < last:
                goal = replace(whole.goal, until=until)
                out.append(Rung(name, replace(whole, goal=goal, played=tuple(steps[:count]))))
    return out


def _reached(world: World, steps: list[Command]) -> dict[str, int]:
    """Return after how many commands of a plan each sub-goal is reached first."""
    states = replace(world, played=tuple(steps)).before
    return {
        name: next(count for count, state in enumerate(states) if holds(state))
        for name, holds in tests(world)
    }


def _starts(reached: dict[str, int]) -> dict[str, int]:
    """Return the starts between reset and success, each with the number of commands before it."""
    starts, last = {"": 0}, 0
    for name, count in reached.items():
        if 0 < last < count - 1:
            starts[f"start before {name}"] = count - 1
        starts[f"start after {name}"] = last = max(last, count)
    return starts


def harder(world: World) -> list[Rung]:
    """Return the neighbours of a game with help: one start earlier, one sub-goal further, or without the reminder."""
    ladder = rungs(world)
    if world.remind:
        return ladder[:1]
    others = [rung for rung in ladder if not rung.world.remind]
    until, left = world.goal.until, _left(world)
    same = [rung for rung in others if rung.world.goal.until == until]
    earlier = [rung for rung in same if _left(rung.world) > left]
    here = [rung for rung in others if rung.world.played == world.played]
    ends = [rung.world.goal.until for rung in here]
    further = here[: ends.index(until)] if until in ends else []
    return earlier[-1:] + further[-1:]


def _left(world: World) -> int:
    return len(plan(world) or ())
