"""Rewrites: harder is harder, easier is easier, each is true, and a false one is caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from environments.household.family import FAMILY
from environments.household.params import world_of
from environments.household.planner import plan
from triforge.errors import EnvError, InputError
from triforge.rollout.protocols import TaskDraft
from triforge.types import Params, Task

ROOM: Params = {
    "receptacles": {"fridge 1": "closed", "shelf 1": "open", "sinkbasin 1": "open"},
    "objects": {"mug 1": "fridge 1", "mug 2": "sinkbasin 1", "apple 1": "fridge 1"},
    "goal": {"type": "clean", "object": "mug", "target": "shelf"},
    "horizon": 20,
    "hint": False,
}


def stored(params: Params, instruction: str | None = None) -> Task:
    draft = FAMILY.validate(params)
    return Task(
        id="t",
        pool_id="p",
        slot="t",
        family="household",
        instruction=instruction or draft.instruction,
        params=draft.params,
    )


def failed(parent: Task, candidate: TaskDraft) -> set[str]:
    return {r.name for r in FAMILY.check_rewrite(parent, candidate) if not r.passed}


TASK = stored(ROOM)  # plan: go sinkbasin, take, clean, go shelf, put


def length(params: Params) -> int:
    steps = plan(world_of(params))
    assert steps is not None
    return len(steps)


def test_harder_offers_longer_plans_or_rarer_goals_and_no_hint() -> None:
    menu = FAMILY.rewrite_menu(TASK, "harder")
    assert length(TASK.params) == 5
    drafts = [FAMILY.apply_rewrite(TASK, answer) for answer in menu.combinations]
    assert {draft.instruction for draft in drafts} == {
        "put clean mug in fridge",  # 6: fetch from sinkbasin, open the fridge
        "put cool mug in shelf",
        "put cool mug in fridge",
        "put cool mug in sinkbasin",
        "put clean apple in fridge",
        "put clean apple in sinkbasin",
        "put cool apple in fridge",  # 5, but cooling is rarer than cleaning
        "put cool apple in sinkbasin",
        "put two mug in shelf",
        "put two mug in fridge",
        "put two mug in sinkbasin",
    }
    assert all(length(draft.params) >= 5 for draft in drafts)
    assert menu.fields["hint"] == ("no",)


def test_easier_offers_shorter_plans_commoner_goals_and_hints() -> None:
    menu = FAMILY.rewrite_menu(TASK, "easier")
    drafts = [FAMILY.apply_rewrite(TASK, answer) for answer in menu.combinations]
    texts = {draft.instruction for draft in drafts}
    assert "put clean mug in shelf hint mug in fridge" in texts
    assert "put some mug in shelf" in texts
    assert not any("two" in text or "cool" in text for text in texts)
    assert all(length(draft.params) <= 5 for draft in drafts)


def test_another_target_at_the_same_effort_is_neither_harder_nor_easier() -> None:
    room: Params = {
        "receptacles": {"countertop 1": "open", "shelf 1": "open", "diningtable 1": "open"},
        "objects": {"mug 1": "diningtable 1"},
        "goal": {"type": "place", "object": "mug", "target": "shelf"},
        "horizon": 20,
        "hint": False,
    }
    assert FAMILY.rewrite_menu(stored(room), "harder").combinations == ()
    assert FAMILY.rewrite_menu(stored(room), "easier").combinations == (
        {"goal": "place", "object": "mug", "target": "shelf", "hint": "yes"},
    )


def test_removing_the_hint_is_harder() -> None:
    hinted = stored({**ROOM, "hint": True})
    answers = FAMILY.rewrite_menu(hinted, "harder").combinations
    assert {"goal": "clean", "object": "mug", "target": "shelf", "hint": "no"} in answers


def test_every_offered_rewrite_passes_every_check() -> None:
    for params in FAMILY.generate(count=10, seed=8, options={"duplicates": 0.5}):
        task = stored(params)
        for direction in ("harder", "easier"):
            for answer in FAMILY.rewrite_menu(task, direction).combinations:
                draft = FAMILY.apply_rewrite(task, answer)
                assert failed(task, draft) == set(), answer
                assert FAMILY.validate(draft.params) == draft


def test_the_description_names_the_room_and_the_task() -> None:
    text = FAMILY.rewrite_menu(TASK, "harder").description
    assert "- fridge 1 (closed): apple 1, mug 1" in text
    assert (
        "Present task: put clean mug in shelf (shortest plan 5 commands, at most 20 steps)" in text
    )
    assert "look =" not in text  # there is no lamp
    assert "cool = " in text


def goal(kind: str, thing: str, target: str, **more: Any) -> Params:
    return {**ROOM, "goal": {"type": kind, "object": thing, "target": target}, **more}


def test_a_goal_changed_without_its_instruction_is_caught() -> None:
    draft = TaskDraft(params=goal("cool", "apple", "shelf"), instruction=TASK.instruction)
    assert failed(TASK, draft) == {"instruction_agrees"}


@pytest.mark.parametrize(
    "announced",
    [
        "put clean apple in sinkbasin",  # another place
        "put some apple in shelf",  # less than is rewarded
        "put cool apple in shelf",  # another treatment
        "put clean mug in shelf",  # another object
        "put clean apple in shelf hint apple in fridge",  # a hint that was not asked for
        "put the clean apple on the shelf",  # not our grammar
        "",
    ],
)
def test_any_other_sentence_than_the_goals_own_is_caught(announced: str) -> None:
    params = goal("clean", "apple", "shelf")
    assert failed(TASK, TaskDraft(params=params, instruction="put clean apple in shelf")) == set()
    assert failed(TASK, TaskDraft(params=params, instruction=announced)) == {"instruction_agrees"}


def test_a_hint_that_lies_is_caught() -> None:
    params = goal("clean", "apple", "shelf", hint=True)
    good = TaskDraft(params=params, instruction="put clean apple in shelf hint apple in fridge")
    assert failed(TASK, good) == set()
    lie = replace(good, instruction="put clean apple in shelf hint apple in sinkbasin")
    assert failed(TASK, lie) == {"instruction_agrees"}


@pytest.mark.parametrize(
    ("params", "instruction", "names"),
    [
        (ROOM, "put clean mug in shelf", {"differs"}),
        (
            goal("place", "mug", "sinkbasin"),
            "put some mug in sinkbasin",
            {"not_satisfied_at_reset", "instruction_agrees"},
        ),
        (goal("two", "mug", "shelf", horizon=5), "put two mug in shelf", {"solvable"}),
        (
            goal("place", "apple", "shelf", objects={"apple 1": "sinkbasin 1"}),
            "put some apple in shelf",
            {"same_room"},
        ),
        (goal("heat", "mug", "shelf"), "put hot mug in shelf", {"well_formed"}),
    ],
)
def test_each_check_catches_its_fault(params: Params, instruction: str, names: set[str]) -> None:
    assert failed(TASK, TaskDraft(params=params, instruction=instruction)) >= names


@pytest.mark.parametrize(
    "change",
    [{"goal": "fly"}, {"object": "sofa"}, {"target": "moon"}, {"hint": "maybe"}, {"extra": "1"}],
)
def test_an_impossible_answer_is_refused(change: dict[str, str]) -> None:
    answer = {"goal": "place", "object": "apple", "target": "shelf", "hint": "no"}
    assert FAMILY.apply_rewrite(TASK, answer).instruction == "put some apple in shelf"
    with pytest.raises(InputError):
        FAMILY.apply_rewrite(TASK, {**answer, **change})


async def test_a_task_that_announces_something_else_does_not_start() -> None:
    environment = FAMILY.make({})
    with pytest.raises(EnvError, match=r"announces 'put two mug in shelf'.*'put clean mug"):
        await environment.reset(stored(ROOM, "put two mug in shelf"), seed=0)
