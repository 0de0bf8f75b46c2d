"""Rewrites: harder is harder, easier is easier, each is true, and a false one is caught."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from environments.household.family import FAMILY
from environments.household.params import params_of, world_of
from environments.household.planner import plan
from environments.household.rewriting import MAX_COMBINATIONS, SAME, difficulty, same_goal
from tests.unit.environments.tasks import task_of
from triforge.errors import EnvError, InputError
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.types import Direction, Params, Task

ROOM: Params = {
    "receptacles": {"fridge 1": "closed", "shelf 1": "open", "sinkbasin 1": "open"},
    "objects": {"mug 1": "fridge 1", "mug 2": "sinkbasin 1", "apple 1": "fridge 1"},
    "goal": {"type": "clean", "object": "mug", "target": "shelf"},
    "horizon": 20,
    "hint": False,
}


def failed(parent: Task, candidate: TaskDraft) -> set[str]:
    return {r.name for r in FAMILY.check_rewrite(parent, candidate) if not r.passed}


TASK = task_of(FAMILY, ROOM)  # plan: go sinkbasin, take, clean, go shelf, put


SAME_GOAL = {"goal": "clean", "object": "mug", "target": "shelf", "hint": "no", "room": "same"}


def length(params: Params) -> int:
    steps = plan(world_of(params))
    assert steps is not None
    return len(steps)


def goals(menu: RewriteMenu) -> set[str]:
    """The instructions of the choices that change the goal."""
    drafts = [FAMILY.apply_rewrite(TASK, a) for a in menu.combinations if a["room"] == "same"]
    return {draft.instruction for draft in drafts}


def rooms(menu: RewriteMenu) -> set[str]:
    return {answer["room"] for answer in menu.combinations} - {"same"}


def test_the_smallest_changes_come_first_and_keep_the_goal() -> None:
    for direction in ("harder", "easier"):
        answers = FAMILY.rewrite_menu(TASK, direction).combinations
        drafts = [FAMILY.apply_rewrite(TASK, answer) for answer in answers]
        distances = [FAMILY.drift(TASK.params, draft.params) for draft in drafts]
        kept = [draft.kind == "clean" for draft in drafts]
        assert kept == sorted(kept, reverse=True)
        first = distances[: kept.count(True)]
        assert first[0] == min(distances)
        assert drafts[0].params["goal"] == TASK.params["goal"]
        assert len(answers) <= MAX_COMBINATIONS


def test_harder_changes_the_room_or_goes_to_goals_that_are_no_commoner() -> None:
    menu = FAMILY.rewrite_menu(TASK, "harder")
    assert rooms(menu) >= {"add apple 2 to fridge 1", "add cabinet 1", "horizon 12"}
    assert not any(room.startswith(("open", "remove")) for room in rooms(menu))
    assert goals(menu) >= {
        "put clean mug in fridge",
        "put cool mug in shelf",
        "put two mug in shelf",
    }
    assert not any("some" in text for text in goals(menu)), "placing is the commoner goal"
    assert menu.fields["hint"] == ("no",)


def test_easier_changes_the_room_or_gives_a_hint() -> None:
    menu = FAMILY.rewrite_menu(TASK, "easier")
    assert "remove apple 1" in rooms(menu)
    assert not any(room.startswith(("close", "add", "horizon")) for room in rooms(menu))
    assert goals(menu) >= {"put clean mug in shelf hint mug in fridge", "put some mug in shelf"}
    assert not any("two" in text or "cool" in text for text in goals(menu))


def test_every_choice_is_where_the_order_says() -> None:
    present = difficulty(world_of(TASK.params), 5)
    for direction in ("harder", "easier"):
        for answer in FAMILY.rewrite_menu(TASK, direction).combinations:
            world = world_of(FAMILY.apply_rewrite(TASK, answer).params)
            after = difficulty(world, length(FAMILY.apply_rewrite(TASK, answer).params))
            assert after > present if direction == "harder" else after < present, answer


@pytest.mark.parametrize(
    "change",
    [
        {"receptacles": {"fridge 1": "open", "shelf 1": "open", "sinkbasin 1": "open"}},
        {"hint": True},
        {"horizon": 30},
        {"objects": {"mug 1": "fridge 1"}},
        {"objects": {"mug 1": "sinkbasin 1", "apple 1": "fridge 1"}},
    ],
)
def test_an_open_door_a_hint_more_time_and_one_thing_less_are_easier(change: Params) -> None:
    room = {**ROOM, "objects": {"mug 1": "fridge 1", "apple 1": "fridge 1"}}
    harder, easier = world_of(room), world_of({**room, **change})
    assert difficulty(easier, length(params_of(easier))) < difficulty(harder, length(room))


def test_another_target_at_the_same_effort_is_neither_harder_nor_easier() -> None:
    room: Params = {
        "receptacles": {"countertop 1": "open", "shelf 1": "open", "diningtable 1": "open"},
        "objects": {"mug 1": "diningtable 1"},
        "goal": {"type": "place", "object": "mug", "target": "shelf"},
        "horizon": 20,
        "hint": False,
    }
    for direction in ("harder", "easier"):
        menu = FAMILY.rewrite_menu(task_of(FAMILY, room), direction)
        assert {answer["target"] for answer in menu.combinations} == {"shelf"}


def test_removing_the_hint_is_harder() -> None:
    hinted = task_of(FAMILY, {**ROOM, "hint": True})
    answers = FAMILY.rewrite_menu(hinted, "harder").combinations
    assert {**SAME_GOAL, "hint": "no"} in answers


DIRECTIONS: tuple[Direction, Direction] = ("harder", "easier")
SORTS = ("any", "room")


def shares(rooms: int, *, seed: int) -> dict[str, dict[str, float]]:
    """Return the share of generated games with a proved rewrite of the same goal, by sort and direction."""
    found: dict[str, list[set[str]]] = {sort: [] for sort in SORTS}
    for params in FAMILY.generate(count=rooms, seed=seed, options={}):
        task = task_of(FAMILY, params)
        had = {way: set(_sorts(task, way)) for way in DIRECTIONS}
        for sort in SORTS:
            found[sort].append({way for way in DIRECTIONS if sort in had[way]})
    wanted = {**{way: {way} for way in DIRECTIONS}, "both": set(DIRECTIONS)}
    return {
        sort: {name: sum(need <= ways for ways in had) / rooms for name, need in wanted.items()}
        for sort, had in found.items()
    }


def _sorts(task: Task, direction: Direction) -> Iterator[str]:
    """Yield the sorts of which the game has a proved rewrite."""
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


def test_nearly_every_room_has_a_proved_rewrite_of_its_goal_both_ways() -> None:
    found = shares(200, seed=11)
    assert found["any"]["both"] >= 0.95
    assert found["room"]["both"] >= 0.9


def test_under_alfworlds_rules_the_room_stays() -> None:
    (params,) = FAMILY.generate(count=1, seed=3, options={"rules": "alfworld"})
    answers = FAMILY.rewrite_menu(task_of(FAMILY, params), "easier").combinations
    assert {answer["room"].partition(" ")[0] for answer in answers} == {"same", "start"}
    assert {answer["hint"] for answer in answers} == {"no"}


def test_every_offered_rewrite_passes_every_check() -> None:
    for params in FAMILY.generate(count=10, seed=8, options={"duplicates": 0.5}):
        task = task_of(FAMILY, params)
        for direction in ("harder", "easier"):
            for answer in FAMILY.rewrite_menu(task, direction).combinations:
                draft = FAMILY.apply_rewrite(task, answer)
                assert failed(task, draft) == set(), answer
                assert FAMILY.validate(draft.params) == draft


def goal(kind: str, thing: str, target: str, **more: Any) -> Params:
    return {**ROOM, "goal": {"type": kind, "object": thing, "target": target}, **more}


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
            {"known_room"},
        ),
        (goal("heat", "mug", "shelf"), "put hot mug in shelf", {"well_formed"}),
    ],
)
def test_each_check_catches_its_fault(params: Params, instruction: str, names: set[str]) -> None:
    assert failed(TASK, TaskDraft(params=params, instruction=instruction)) >= names


@pytest.mark.parametrize(
    "change",
    [
        {"goal": "fly"},
        {"object": "sofa"},
        {"target": "moon"},
        {"hint": "maybe"},
        {"room": "sell fridge 1"},
        {"extra": "1"},
    ],
)
def test_an_impossible_answer_is_refused(change: dict[str, str]) -> None:
    answer = {**SAME_GOAL, "goal": "place", "object": "apple"}
    assert FAMILY.apply_rewrite(TASK, answer).instruction == "put some apple in shelf"
    with pytest.raises(InputError):
        FAMILY.apply_rewrite(TASK, {**answer, **change})


async def test_a_task_that_announces_something_else_does_not_start() -> None:
    environment = FAMILY.make({})
    with pytest.raises(
        EnvError, match=r"announces 'put two mug in shelf'.*'put clean mug"
    ) as caught:
        await environment.reset(task_of(FAMILY, ROOM, "put two mug in shelf"), seed=0)
    assert not caught.value.retryable


def test_what_plays_no_part_is_removed_at_once() -> None:
    idle = {"cabinet 1": "closed", "drawer 1": "open", "desk 1": "open"}
    room = {**ROOM, "receptacles": {**ROOM["receptacles"], **idle}}  # type: ignore[dict-item]
    room["objects"] = {**ROOM["objects"], "plate 1": "cabinet 1"}  # type: ignore[dict-item]
    task = task_of(FAMILY, room)
    answer = {**SAME_GOAL, "room": "remove unused"}
    assert answer in FAMILY.rewrite_menu(task, "easier").combinations
    candidate = FAMILY.apply_rewrite(task, answer)
    assert candidate.params == task_of(FAMILY, ROOM).params
    assert not failed(task, candidate)
    assert "remove unused" not in rooms(FAMILY.rewrite_menu(TASK, "easier"))
