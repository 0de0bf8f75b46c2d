"""Of how many generated household games a rewrite keeps the goal: `python -m bench.rewrites [--rooms 1000]`.

Every rewrite that is counted is applied and passes the family's own checks. `room` leaves out those that change only the
horizon or the hint.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from environments.household.family import FAMILY
from environments.household.params import world_of
from environments.household.rewriting import SAME, same_goal
from triforge.types import Direction, Params, Task

ATLEAST = 0.95
DIRECTIONS: tuple[Direction, Direction] = ("harder", "easier")
SORTS = ("any", "room")


def task_of(params: Params) -> Task:
    """A game as the task that a pool would hold."""
    draft = FAMILY.validate(params)
    return Task(id="t", pool_id="p", slot="t", family="household", instruction=draft.instruction,
                params=draft.params, kind=draft.kind)  # fmt: skip


def shares(rooms: int, *, seed: int = 0) -> dict[str, dict[str, float]]:
    """Share of generated games that have a proved rewrite of the same goal, by sort and direction; `both` is in both."""
    found: dict[str, list[set[str]]] = {sort: [] for sort in SORTS}
    for params in FAMILY.generate(count=rooms, seed=seed, options={}):
        task = task_of(params)
        had = {way: set(_sorts(task, way)) for way in DIRECTIONS}
        for sort in SORTS:
            found[sort].append({way for way in DIRECTIONS if sort in had[way]})
    wanted = {**{way: {way} for way in DIRECTIONS}, "both": set(DIRECTIONS)}
    return {
        sort: {name: sum(need <= ways for ways in had) / rooms for name, need in wanted.items()}
        for sort, had in found.items()
    }


def _sorts(task: Task, direction: Direction) -> Iterator[str]:
    """The sorts of which the game has a proved rewrite; one of each is proved."""
    left = set(SORTS)
    for answer in same_goal(world_of(task.params), direction):
        only_room = answer["room"] != SAME and not answer["room"].startswith("horizon")
        sorts = left & ({"any", "room"} if only_room else {"any"})
        if sorts and _proved(task, answer):
            yield from sorts
            left -= sorts
        if not left:
            return


def _proved(task: Task, answer: dict[str, str]) -> bool:
    draft = FAMILY.apply_rewrite(task, answer)
    checks = FAMILY.check_rewrite(task, draft)
    return draft.kind == task.kind and all(check.passed for check in checks)


def main(arguments: list[str]) -> int:
    """Print the table; returns 1 when fewer than `ATLEAST` have one in both directions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rooms", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    table = shares(given.rooms, seed=given.seed)
    print("| rewrites of the same goal | harder | easier | both |\n|---|---|---|---|")
    for sort, row in table.items():
        print(f"| {sort} | {row['harder']:.3f} | {row['easier']:.3f} | {row['both']:.3f} |")
    return int(table["any"]["both"] < ATLEAST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
