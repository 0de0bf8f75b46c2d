"""Sokoban as an environment family."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pydantic import Field

from environments.gui.png import encode
from environments.sokoban.board import DIRECTIONS, MAX_STATES, Board, TooLarge, read_board, solve
from environments.sokoban.generator import GeneratorOptions, generate
from triforge.environments.kit import AnswerOptions, Family, Strict, parse_model, part_of, wrapped
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.types import Params

_GUIDE: Final = (
    "You play Sokoban. The board is drawn with # wall, _ floor, . target, $ box, * box on a target, @ you, + you on a "
    "target. You move one square up, down, left or right; walking into a box pushes it one square if the square behind "
    "it is free. Boxes cannot be pulled. {answer}"
)
_COLOURS: Final = (
    "You play Sokoban. The picture shows grey walls, white floor, yellow targets, red boxes, green boxes on a target, and you in "
    "blue. You move one square up, down, left or right; walking into a box pushes it one square if the square behind it is "
    "free. Boxes cannot be pulled. {answer}"
)
_LADDER_SIZE, _LADDER_BOXES = 9, 3  # more are never needed for a longer solution


class BoardParams(Strict):
    """A board as JSON: `board` is one string a row, `horizon` the number of moves until the episode is lost."""

    board: list[str]
    horizon: int = Field(default=60, ge=1, le=10_000)


class PlayOptions(AnswerOptions):
    """Options of a run: a response may have several `moves`, separated by blanks or commas.

    With `picture` the board is shown as an image and not in marks.
    """

    moves: int = Field(default=1, ge=1, le=20)
    picture: bool = False


_PAINT: Final = {
    "#": (128, 128, 128), "_": (255, 255, 255), ".": (240, 220, 30), "$": (220, 30, 30), "*": (30, 180, 30),
    "@": (30, 60, 220), "+": (30, 60, 220),
}  # fmt: skip
_SQUARE: Final = 14  # pixels a side


def picture(rows: Sequence[str]) -> bytes:
    """Draw a board as a PNG file, a square of one colour for each mark."""
    lines = (b"".join(bytes(_PAINT[mark]) * _SQUARE for mark in row) * _SQUARE for row in rows)
    return encode(_SQUARE * len(rows[0]), _SQUARE * len(rows), b"".join(lines))


class SokobanEpisode:
    """A board being played."""

    def __init__(self, board: Board, horizon: int, options: PlayOptions, announced: str) -> None:
        self.done = False
        self._board = board
        self._state = board.start
        self._left = horizon
        self._options = options
        self._announced = announced

    def start(self) -> Reset:
        many = self._options.moves > 1
        what = f"one to {self._options.moves} moves" if many else "one move"
        return Reset(
            observation=self._observe(self._announced),
            system=self._options.system(_COLOURS if self._options.picture else _GUIDE, what),
        )

    def play(self, response: str) -> StepResult:
        """Play the moves of a response in turn, up to the first that moves nothing."""
        text = part_of(response, self._options.answer).strip().lower()
        words = [word for word in re.split(r"[\s,|]+", text) if word]
        readable = 1 <= len(words) <= self._options.moves and set(words) <= set(DIRECTIONS)
        moved = readable
        for word in words if readable else ("",):
            moved = moved and self._move(word)
            self._left -= 1
            if not moved or self._board.won(self._state) or self._left == 0:
                break
        success = self._board.won(self._state)
        self.done = success or self._left <= 0
        return StepResult(
            observation=self._observe("Solved." if success else "" if moved else "Nothing moves."),
            action=" ".join(words)[:200],
            action_valid=moved,
            done=self.done,
            success=success,
        )

    def _move(self, word: str) -> bool:
        after = self._board.move(self._state, DIRECTIONS.index(word))
        self._state = after or self._state
        return after is not None

    def _observe(self, above: str) -> Observation:
        rows = self._board.rows(self._state)
        open_ = () if self.done else tuple(DIRECTIONS[d] for d, _ in self._board.moves(self._state))
        if self._options.picture:
            return Observation(text=above, admissible=open_, images=(picture(rows),))
        drawn = "\n".join(rows)
        return Observation(text=f"{above}\n{drawn}".lstrip("\n"), admissible=open_)


class SokobanFamily(Family[BoardParams, PlayOptions]):
    """The family `sokoban`; README.md explains it."""

    name = "sokoban"
    about = About(
        what="push boxes onto targets; every board has a proved shortest solution",
        tasks="generated",
        licence="Apache-2.0 (own)",
        papers="RAGEN",
        steps_per_s=46_000,
    )
    never_blocks = True
    params, play_options = BoardParams, PlayOptions

    def instruction(self, given: BoardParams) -> str:
        boxes = len(read_board(given.board).start.boxes)
        what = "the box onto the target" if boxes == 1 else f"all {boxes} boxes onto targets"
        return f"Push {what} within {given.horizon} moves."

    def kind(self, given: BoardParams) -> str:
        boxes = len(read_board(given.board).start.boxes)
        return f"{boxes} box{'es' if boxes > 1 else ''}"

    def check(self, given: BoardParams) -> None:
        board = read_board(given.board)
        if board.won(board.start):
            raise InputError("sokoban params: field board: every box is on a target already")
        try:
            solution = solve(board)
        except TooLarge:
            raise InputError(
                f"sokoban params: field board: no solution among {MAX_STATES} states; use a smaller board or fewer boxes"
            ) from None
        if solution is None:
            raise InputError("sokoban params: field board: it cannot be solved")
        if len(solution) > given.horizon:
            raise InputError(
                f"sokoban params: field horizon: given {given.horizon}, the shortest solution has {len(solution)} moves"
            )

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        wanted = parse_model(GeneratorOptions, options, "sokoban generate")
        made = [generate(wanted, seed=seed, index=index) for index in range(count)]
        return [
            {"board": list(board.rows(board.start)), "horizon": horizon} for board, horizon in made
        ]

    def begin(
        self, given: BoardParams, options: PlayOptions, announced: str, _seed: int
    ) -> SokobanEpisode:
        return SokobanEpisode(read_board(given.board), given.horizon, options, announced)

    def solution(self, given: BoardParams, options: PlayOptions) -> Sequence[str] | None:
        """Return a shortest solution, with as many moves a response as the options allow."""
        words = [DIRECTIONS[step] for step in solve(read_board(given.board)) or ()]
        turns = [words[at : at + options.moves] for at in range(0, len(words), options.moves)]
        return [wrapped(" ".join(turn), options.answer) for turn in turns] or None

    def at_level(self, level: int, options: Params) -> Params:
        """Return the options for boards with three moves more a level; a row more every third, a box every fifth."""
        return {
            "size": min(_LADDER_SIZE, 6 + level // 3),
            "boxes": min(_LADDER_BOXES, 1 + level // 5),
            **options,
            "moves": [3 * level + 1, 3 * level + 3],
        }


FAMILY: Final = SokobanFamily()
