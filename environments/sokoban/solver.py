"""The shortest solution of a board by breadth-first search over its states."""

from __future__ import annotations

from collections import deque
from typing import Final

from environments.sokoban.board import Board, State

MAX_STATES: Final = 200_000
"""States that a search may look at; a few tenths of a second to a second of one core."""


class TooLarge(Exception):  # noqa: N818  nothing is wrong with the board
    """The search was given up before it knew."""


def solve(board: Board, *, max_states: int = MAX_STATES) -> list[int] | None:
    """The directions of a shortest solution in moves, or None when there is none.

    A box on a square from which it can never reach a target ends that branch.
    """
    start = board.start
    if board.won(start):
        return []
    came: dict[State, tuple[State, int] | None] = {start: None}
    todo = deque([start])
    while todo:
        state = todo.popleft()
        for direction, after in board.moves(state):
            if after in came or not board.live.issuperset(after.boxes):
                continue
            came[after] = (state, direction)
            if board.won(after):
                return _path(came, after)
            todo.append(after)
            if len(came) > max_states:
                raise TooLarge
    return None


def _path(came: dict[State, tuple[State, int] | None], end: State) -> list[int]:
    directions = []
    step = came[end]
    while step is not None:
        directions.append(step[1])
        step = came[step[0]]
    return directions[::-1]
