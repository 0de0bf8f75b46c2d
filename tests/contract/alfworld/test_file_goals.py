"""Game files with another goal: instruction and goal agree, goals that hold at reset are refused, the real planner proves the others."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from environments.alfworld.family import FAMILY
from environments.alfworld.files import read_game, room_of
from environments.alfworld.goals import announce, formula
from environments.alfworld.pddl import read_room, with_goal
from environments.household.catalogue import GOAL_TYPES
from environments.household.generator import generate
from scripts.real_alfworld.game_files import problem, write_game
from triforge.errors import InputError
from triforge.rollout.protocols import TaskDraft
from triforge.testing import check_environment, require
from triforge.types import Params, Task

PYTHON = os.environ.get("ALFWORLD_PYTHON") or (sys.executable if find_spec("alfworld") else "")
live = pytest.mark.skipif(not PYTHON, reason="alfworld is not installed; see `make test-alfworld`")
SOURCES = {
    "domain": "(define (domain alfred))",
    "grammar": 'x "rhs": "Your task is to: UNKNOWN GOAL." y',
}
OFFICIAL = """
(define (problem plan_trial_T1) (:domain alfred)
 (:objects agent1 - agent Mug_bar_1 - object)
 (:init (= (total-cost) 0)
  (receptacleType Cabinet_bar_1 CabinetType) (receptacleType Desk_bar_1 DeskType)
  (receptacleType SinkBasin_bar_1 SinkBasinType) (openable Cabinet_bar_1)
  (canContain CabinetType MugType) (canContain DeskType MugType) (canContain DeskType BookType)
  (objectType Mug_bar_1 MugType) (objectType Mug_bar_2 MugType) (objectType Book_bar_1 BookType)
  (pickupable Mug_bar_1) (pickupable Mug_bar_2) (pickupable Book_bar_1)
  (cleanable Mug_bar_1) (inReceptacle Mug_bar_1 Cabinet_bar_1) (inReceptacle Book_bar_1 Desk_bar_1)
  (objectType DeskLamp_bar_1 DeskLampType) (toggleable DeskLamp_bar_1))
 (:goal (and (exists (?r - receptacle) (exists (?o - object) (and {}
   (objectType ?o MugType) (receptacleType ?r DeskType) (inReceptacle ?o ?r)))))))
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    return tmp_path


def file_task(data: Path, sort: str = "place", seed: int = 6, **sources: Any) -> Task:
    world = generate(count=1, seed=seed, options={"rules": "alfworld", "goals": [sort]})[0]
    path = write_game(data, 0, seed, world, sources or SOURCES)
    return task_of({"file": str(path.relative_to(data)), "horizon": 50})


def task_of(params: Params) -> Task:
    draft = FAMILY.validate(params)
    return Task(
        id="t", pool_id="p", slot="t", family="alfworld", instruction=draft.instruction,
        params=draft.params,
    )  # fmt: skip


def test_the_official_spelling_of_facts_and_goals_is_read() -> None:
    room = read_room(OFFICIAL.format(""))
    assert room.goal == ("place", "mug", "desk")
    assert read_room(OFFICIAL.format("(isClean ?o)")).goal == ("clean", "mug", "desk")
    assert read_room(OFFICIAL.format("(isSliced ?o)")).goal is None
    assert room.goals("place") == [("place", "mug", "desk")], (
        "one in a cabinet, the book on its desk"
    )
    assert room.goals("clean") == [("clean", "mug", "cabinet"), ("clean", "mug", "desk")]
    assert room.goals("heat") == [], "there is no microwave"
    assert room.goals("look") == [(("look"), kind, "desklamp") for kind in ("book", "mug")]
    assert room.difficulty(("clean", "mug", "cabinet")) > room.difficulty(("clean", "mug", "desk"))


@pytest.mark.parametrize("sort", GOAL_TYPES)
def test_a_goal_is_read_from_the_file_as_it_was_written(sort: Any) -> None:
    world = generate(count=1, seed=2, options={"rules": "alfworld", "goals": [sort]})[0]
    goal = (sort, "mug", "desklamp" if sort == "look" else "desk")
    assert goal[1:] == tuple(word for word in announce(goal).split() if word in goal[1:])
    game = {"pddl_problem": problem(world), "grammar": '"Your task is to: old one." "other"'}
    made = with_goal(game, formula(goal), announce(goal))
    before, after = read_room(game["pddl_problem"]), read_room(made["pddl_problem"])
    assert after.goal == goal
    assert (after.kinds, after.inside, after.marks) == (before.kinds, before.inside, before.marks)
    assert made["grammar"] == f'"Your task is to: {announce(goal)}." "other"'


def test_a_file_gets_another_goal_of_its_type_and_goes_back_to_its_own(data: Path) -> None:
    task = file_task(data)
    menus = {way: FAMILY.rewrite_menu(task, way) for way in ("harder", "easier")}  # type: ignore[arg-type]
    answers = [answer for menu in menus.values() for answer in menu.combinations]
    assert answers
    root = room_of(read_game(str(task.params["file"]))).goal
    assert root is not None
    for answer in answers:
        draft = FAMILY.apply_rewrite(task, answer)
        assert draft.params["goal"] == {"type": root[0], **answer}
        assert draft.instruction == f"put some {answer['object']} on {answer['target']}"
        assert draft.kind == "place"
        assert FAMILY.validate(draft.params) == draft
        assert 0.0 < FAMILY.drift(task.params, draft.params) < 0.75
    rewritten = task_of(draft.params)
    back = FAMILY.apply_rewrite(rewritten, {"object": root[1], "target": root[2]})
    assert back.params == task.params
    assert back.instruction == task.instruction


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({}, "fields: given"),
        ({"object": "mug"}, "fields: given"),
        ({"object": "no such", "target": "desk"}, "goal.object"),
        ({"object": "unicorn", "target": "desk"}, "cannot be reached"),
    ],
)
def test_an_answer_that_names_nothing_there_is_refused(
    data: Path, answer: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        FAMILY.apply_rewrite(file_task(data), answer)


def test_a_goal_that_holds_at_reset_is_refused(data: Path) -> None:
    task = file_task(data)
    room = room_of(read_game(str(task.params["file"])))
    kinds = ((room.kinds[one], room.places[at]) for one, at in room.inside.items())
    kind, place = next(kinds)
    goal = {"type": "place", "object": kind, "target": place}
    with pytest.raises(InputError, match="holds already at reset"):
        FAMILY.validate({**task.params, "goal": goal})


def test_a_sentence_that_is_not_the_goals_is_refused_before_the_engine_is_asked(data: Path) -> None:
    task = file_task(data)
    (answer, *_) = FAMILY.rewrite_menu(task, "harder").combinations
    draft = FAMILY.apply_rewrite(task, answer)
    lies = {
        "announced": TaskDraft(params=draft.params, instruction=task.instruction),
        "differs": TaskDraft(params=task.params, instruction=task.instruction),
        "same_file": TaskDraft(
            params={**draft.params, "horizon": 9}, instruction=draft.instruction
        ),
        "well_formed": TaskDraft(params={"file": "none"}, instruction=draft.instruction),
    }
    for name, lie in lies.items():
        failed = {check.name for check in FAMILY.check_rewrite(task, lie) if not check.passed}
        assert name in failed


# ---- with the engine --------------------------------------------------------------------------------------------


@live
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("sort", ["place", "clean", "two", "look"])
def test_the_real_planner_wins_the_new_goal_as_the_engine_announces_it(
    data: Path, sort: str
) -> None:
    from environments.alfworld.engine import engine

    task = file_task(data, sort, seed=3, **engine().sources())
    tried = 0
    for direction in ("harder", "easier"):
        for answer in FAMILY.rewrite_menu(task, direction).combinations[:1]:  # type: ignore[arg-type]
            draft = FAMILY.apply_rewrite(task, answer)
            made = FAMILY.check_rewrite(task, draft)
            assert all(check.passed for check in made), (answer, made)
            gold = FAMILY.gold(task_of(draft.params), {})
            assert gold
            tried += 1
    assert tried


@live
@pytest.mark.timeout(1200)
async def test_game_files_keep_the_contract(data: Path) -> None:
    from environments.alfworld.engine import engine

    task = file_task(data, "clean", seed=3, **engine().sources())
    require(await check_environment(FAMILY, tasks=[task.params], max_steps=60))
