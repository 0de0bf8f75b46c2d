"""Sokoban: the rules, the shortest solutions, and boards that cannot be."""

from __future__ import annotations

from itertools import product

import pytest

from environments.gui.png import size
from environments.sokoban.board import DIRECTIONS, TooLarge, read_board, solve
from environments.sokoban.family import FAMILY
from tests.unit.environments.tasks import task_of
from triforge.errors import InputError
from triforge.types import Params

ROOM = ["#####", "#@$.#", "#####"]
CORNER = ["######", "#$___#", "#_@._#", "######"]


def test_a_box_is_pushed_and_never_pulled() -> None:
    board = read_board(["######", "#_@$.#", "######"])
    pushed = board.move(board.start, DIRECTIONS.index("right"))
    assert pushed is not None
    assert board.rows(pushed)[1] == "#__@*#"
    back = board.move(pushed, DIRECTIONS.index("left"))
    assert back is not None
    assert board.rows(back)[1] == "#_@_*#"


@pytest.mark.parametrize("row", ["#@$$.#", "#@$#.#", "#@#$.#"])
def test_what_stands_against_a_wall_or_a_box_does_not_move(row: str) -> None:
    rows = ["######", row, "#_.__#" if "$$" in row else "#____#", "######"]
    board = read_board(rows)
    assert board.move(board.start, DIRECTIONS.index("right")) is None


def brute_force(rows: list[str], longest: int) -> int | None:
    """The length of a shortest solution by trying every sequence of moves."""
    board = read_board(rows)
    for length in range(1, longest + 1):
        for moves in product(range(4), repeat=length):
            state = board.start
            for move in moves:
                state = board.move(state, move) or state
            if board.won(state):
                return length
    return None


@pytest.mark.parametrize("seed", range(6))
def test_the_solver_finds_what_trying_everything_finds(seed: int) -> None:
    (params,) = FAMILY.generate(count=1, seed=seed, options={"size": 5, "moves": [1, 6]})
    rows = [str(row) for row in params["board"]]  # type: ignore[union-attr]
    found = solve(read_board(rows))
    assert found is not None
    assert len(found) == brute_force(rows, 6)


def test_a_generated_board_needs_as_many_moves_as_it_was_asked_to() -> None:
    for length in (2, 7, 15):
        options: Params = {"size": 7, "boxes": 2, "moves": [length, length]}
        for params in FAMILY.generate(count=4, seed=3, options=options):
            solution = FAMILY.gold(task_of(FAMILY, params), {})
            assert solution is not None
            assert len(solution) == length


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"board": []}, "expected 3 to 16"),
        ({"board": ["####", "#@$#", "####"]}, "0 targets"),
        ({"board": ["#####", "#@$.x", "#####"]}, r"board\.1"),
        ({"board": ["#####", "#@$.#", "####"]}, r"board\.2"),
        ({"board": ["##_##", "#@$.#", "#####"]}, "border must be walls"),
        ({"board": ["#####", "#@*_#", "#####"]}, "already"),
        ({"board": CORNER}, "cannot be solved"),
        ({"board": ["######", "#@$_.#", "######"], "horizon": 1}, "shortest solution has 2"),
        ({"board": ROOM, "colour": "red"}, "colour"),
        ({"board": "#####"}, "board"),
    ],
)
def test_an_impossible_board_is_refused_with_the_reason(params: Params, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FAMILY.validate(params)


def test_a_search_that_was_given_up_is_not_called_unsolvable() -> None:
    with pytest.raises(TooLarge):
        solve(read_board(["#######", "#@_$_.#", "#######"]), max_states=1)


def test_options_that_leave_no_board_are_refused() -> None:
    with pytest.raises(InputError, match="widen"):
        FAMILY.generate(count=1, seed=1, options={"size": 5, "moves": [90, 99]})


async def test_a_response_of_several_moves_stops_at_the_first_that_moves_nothing() -> None:
    rows = ["#######", "#_@$_.#", "#######"]
    environment = FAMILY.make({"moves": 4})
    await environment.reset(task_of(FAMILY, {"board": rows, "horizon": 9}), seed=0)
    result = await environment.step("left, left right right")
    assert not result.action_valid
    assert "#@_$_.#" in result.observation.text
    result = await environment.step("right right right right")
    assert (result.done, result.success, result.action_valid) == (True, True, True)


async def test_a_board_is_shown_as_a_picture_of_coloured_squares() -> None:
    played = FAMILY.make({"picture": True, "guide": False})
    begun = await played.reset(task_of(FAMILY, {"board": ROOM, "horizon": 3}), seed=1)
    assert "#" not in begun.observation.text
    (before,) = begun.observation.images
    assert size(before) == (5 * 14, 3 * 14)
    assert (after := await played.step("right")).success
    assert after.observation.images[0] != before, "the last screen is shown, too"
    await played.close()
