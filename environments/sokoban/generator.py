"""Boards by playing backwards: boxes start on their targets and are pulled away, so the way back is known and shortest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Annotated, Final

from pydantic import Field

from environments.sokoban.board import LARGEST, MAX_BOXES, Board, State
from triforge.environments.kit import ORDERED, Strict
from triforge.errors import InputError

_TRIES: Final = 100  # rooms for one game
_STATES: Final = 20_000  # of the backwards search in one room
_SMALLEST: Final = 5


Span = Annotated[
    list[Annotated[int, Field(ge=1, le=500)]], Field(min_length=2, max_length=2), ORDERED
]


class GeneratorOptions(Strict):
    """Options of the generator; README.md explains each."""

    size: int = Field(default=6, ge=_SMALLEST, le=LARGEST)
    boxes: int = Field(default=1, ge=1, le=MAX_BOXES)
    inner: float = Field(default=0.2, ge=0.0, le=0.6)
    moves: Span = Field(default_factory=lambda: [3, 30])
    slack: float = Field(default=2.0, ge=1.0, le=10.0)


def generate(wanted: GeneratorOptions, *, seed: int, index: int) -> tuple[Board, int]:
    """Return a board whose shortest solution has `options.moves` moves, and its limit; it depends on the arguments only."""
    rng = Random(f"sokoban {seed} {index} {sorted(wanted.model_dump().items())}")  # noqa: S311
    for _ in range(_TRIES):
        room = _room(wanted, rng)
        far = _far_from_solved(room, *wanted.moves) if room else []
        if room and far:
            depth, start = rng.choice(far)
            return replace(room, start=start), int(depth * wanted.slack) + 10
    raise InputError(
        f"sokoban generate: no board of size {wanted.size} with {wanted.boxes} boxes and a solution of "
        f"{wanted.moves[0]} to {wanted.moves[1]} moves in {_TRIES} tries; widen generate.options.moves or size"
    )


def _room(wanted: GeneratorOptions, rng: Random) -> Board | None:
    """Draw walls and targets with every box on a target; return None when the boxes have no room."""
    size = wanted.size
    inner = [row * size + column for row in range(1, size - 1) for column in range(1, size - 1)]
    rng.shuffle(inner)
    kept = inner[int(len(inner) * wanted.inner) :]
    if len(kept) <= wanted.boxes:
        return None
    targets, player = tuple(sorted(kept[: wanted.boxes])), kept[wanted.boxes]
    return Board(
        width=size,
        height=size,
        walls=frozenset(range(size * size)) - frozenset(kept),
        targets=frozenset(targets),
        start=State(player, targets),
    )


def _far_from_solved(room: Board, low: int, high: int) -> list[tuple[int, State]]:
    """Return the states that are `low` to `high` moves from solved, with that number.

    It searches backwards, breadth first, from every solved state: a state at depth d needs exactly d moves. It looks at no more than
    `_STATES` states, so it misses very long solutions in very open rooms.
    """
    boxes = room.start.boxes
    layer = [State(square, boxes) for square in sorted(room.floor - set(boxes))]
    seen = set(layer)
    far: list[tuple[int, State]] = []
    for depth in range(1, high + 1):
        layer = [before for state in layer for before in _backwards(room, state, seen)]
        if depth >= low:
            far += [(depth, state) for state in layer]
        if not layer or len(seen) > _STATES:
            break
    return far


def _backwards(board: Board, state: State, seen: set[State]) -> Iterator[State]:
    """Yield the new states from which one move leads to `state`: the player stepped here, or pushed a box."""
    for step in board.steps:
        came_from, pushed = state.player - step, state.player + step
        if came_from in board.walls or came_from in state.boxes:
            continue
        before = [State(came_from, state.boxes)]
        if pushed in state.boxes:
            moved = (state.player if box == pushed else box for box in state.boxes)
            before.append(State(came_from, tuple(sorted(moved))))
        for one in before:
            if one not in seen:
                seen.add(one)
                yield one
