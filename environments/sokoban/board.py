"""A board and its moves. Squares are numbered row by row; a state is where the player and the boxes are.

#  wall     _  floor     .  target     $  box     *  box on a target     @  player     +  player on a target
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from triforge.environments.kit import path_back
from triforge.errors import InputError

DIRECTIONS: Final = ("up", "down", "left", "right")
SMALLEST, LARGEST = 3, 16  # rows and columns
MAX_BOXES: Final = 8
_MARKS: Final = "#_.$*@+"


class State(NamedTuple):
    """Where the player stands and where the boxes are (sorted)."""

    player: int
    boxes: tuple[int, ...]


@dataclass(frozen=True)
class Board:
    """The squares that never change, and the state at the beginning."""

    width: int
    walls: frozenset[int]
    targets: frozenset[int]
    height: int
    start: State

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The change of a square's number by a move, in the order of `DIRECTIONS`."""
        return (-self.width, self.width, -1, 1)

    @cached_property
    def floor(self) -> frozenset[int]:
        return frozenset(range(self.width * self.height)) - self.walls

    @cached_property
    def live(self) -> frozenset[int]:
        """The squares from which a single box can be brought to a target."""
        live = set(self.targets)
        todo = list(self.targets)
        while todo:  # pull a box backwards from each target
            square = todo.pop()
            for step in self.steps:
                before, player = square - step, square - 2 * step
                if before not in self.walls and player in self.floor and before not in live:
                    live.add(before)
                    todo.append(before)
        return frozenset(live)

    def won(self, state: State) -> bool:
        return self.targets.issuperset(state.boxes)

    def move(self, state: State, direction: int) -> State | None:
        """Return the state after a move, or None when nothing moves."""
        step = self.steps[direction]
        to = state.player + step
        if to in self.walls:
            return None
        if to not in state.boxes:
            return State(to, state.boxes)
        beyond = to + step
        if beyond in self.walls or beyond in state.boxes:
            return None
        boxes = tuple(sorted(beyond if box == to else box for box in state.boxes))
        return State(to, boxes)

    def moves(self, state: State) -> Iterator[tuple[int, State]]:
        """Every direction in which something moves, and the state after it."""
        for direction in range(len(DIRECTIONS)):
            after = self.move(state, direction)
            if after is not None:
                yield direction, after

    def rows(self, state: State) -> list[str]:
        """Draw the board, one string a row."""
        boxes = set(state.boxes)
        marks = [
            self._mark(square, square == state.player, square in boxes)
            for square in range(self.width * self.height)
        ]
        return ["".join(marks[at : at + self.width]) for at in range(0, len(marks), self.width)]

    def _mark(self, square: int, player: bool, box: bool) -> str:
        if square in self.walls:
            return "#"
        target = square in self.targets
        if player:
            return "+" if target else "@"
        if box:
            return "*" if target else "$"
        return "." if target else "_"


def read_board(rows: Sequence[str]) -> Board:
    """Read the board that is drawn in `rows`."""
    width, height = len(rows[0]) if rows else 0, len(rows)
    if not (SMALLEST <= width <= LARGEST and SMALLEST <= height <= LARGEST):
        raise InputError(
            f"sokoban params: field board: given {height} rows of {width}, expected {SMALLEST} to {LARGEST} each"
        )
    for number, row in enumerate(rows):
        if len(row) != width or set(row) - set(_MARKS):
            raise InputError(
                f"sokoban params: field board.{number}: given {row!r}, expected {width} of the marks {_MARKS}"
            )
    marks = "".join(rows)
    at = {mark: [i for i, one in enumerate(marks) if one == mark] for mark in _MARKS}
    players = at["@"] + at["+"]
    boxes = sorted(at["$"] + at["*"])
    targets = at["."] + at["*"] + at["+"]
    if len(players) != 1 or not 1 <= len(boxes) <= MAX_BOXES or len(targets) != len(boxes):
        raise InputError(
            f"sokoban params: field board: given {len(players)} players, {len(boxes)} boxes, {len(targets)} targets; "
            f"expected 1 player and 1 to {MAX_BOXES} boxes with as many targets"
        )
    border = {*rows[0], *rows[-1], *(row[0] for row in rows), *(row[-1] for row in rows)}
    if border != {"#"}:
        raise InputError("sokoban params: field board: the border must be walls (#) all round")
    return Board(
        width=width,
        height=height,
        walls=frozenset(at["#"]),
        targets=frozenset(targets),
        start=State(players[0], tuple(boxes)),
    )


MAX_STATES: Final = 200_000
"""The most states of a search; a few tenths of a second to a second of one core."""


class TooLarge(Exception):  # noqa: N818  the board may be right
    """A search that ended at its limit of states."""


def solve(board: Board, *, max_states: int = MAX_STATES) -> list[int] | None:
    """Return the directions of a shortest solution in moves, or None when there is none.

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
                return path_back(came, after)
            todo.append(after)
            if len(came) > max_states:
                raise TooLarge
    return None
