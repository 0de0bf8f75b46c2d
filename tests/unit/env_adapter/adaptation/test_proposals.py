"""Families are plug-ins: what they raise while a rewrite is written is on record, and is not tried again for ever."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from services.env_adapter.adaptation.adapter import make_adapter
from tests.sections import adapt_settings
from tests.unit.env_adapter.conftest import Service, ShelfFamily
from triforge.errors import SandboxError
from triforge.rollout.adapting import SubGoal
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.testing.fakes import FakeGenerate
from triforge.types import DiagnosisNote, Direction, Params, Task


def first_choice(request: Any) -> str:
    return "" if request.sampling.regex is None else str(request.sampling.regex).split("|")[0]


class NoMenu(ShelfFamily):
    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        raise KeyError("shelf")


class NoRewrite(ShelfFamily):
    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        raise ZeroDivisionError("a shelf of no width")


class NoProof(ShelfFamily):
    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> Any:
        raise SandboxError("no sandbox starts here")


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        (NoMenu(), "writing the proposal raised KeyError: 'shelf'"),
        (NoRewrite(), "writing the proposal raised ZeroDivisionError: a shelf of no width"),
        (NoProof(), "writing the proposal raised SandboxError: no sandbox starts here"),
    ],
)
async def test_what_a_family_raises_makes_an_invalid_proposal_that_says_so(
    service: Service, family: ShelfFamily, reason: str
) -> None:
    model = FakeGenerate(first_choice)
    adapter = make_adapter(service.database, lambda _: family, model)
    outcome = service.outcome(service.first, 8, settings=adapt_settings(max_pending=9))
    (proposal,) = await adapter.handle(outcome)
    assert (proposal.state, proposal.reason) == ("invalid", reason)
    asked = len(model.requests)
    assert await adapter.handle(outcome) == (), "it is on record"
    assert len(model.requests) == asked, "no model is asked about it again"


class OpenShelf(ShelfFamily):
    """Answers in the model's words: any shelf and colour, as JSON."""

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        text = {"type": "string"}
        schema = {
            "type": "object",
            "properties": {"shelf": text, "colour": text},
            "required": ["shelf", "colour"],
        }
        return RewriteMenu(description="A shelf.", json_schema=json.dumps(schema))


async def test_open_answers_that_do_not_hold_leave_an_invalid_proposal_and_nothing_else(
    service: Service,
) -> None:
    answers = ["Sure!", '{"shelf": "3"}', '{"shelf": "9", "colour": "red"}']
    model = FakeGenerate(answers)
    adapter = make_adapter(service.database, lambda _: OpenShelf(), model)
    before = service.states()
    settings = adapt_settings(max_pending=9, candidates=1, diagnosis_budget=0)
    failed = []
    for group in ("g1", "g2", "g3"):
        outcome = service.outcome(service.first, 8, group, settings=settings)
        (proposal,) = await adapter.handle(outcome)
        assert (proposal.state, proposal.candidate_id) == ("invalid", None)
        failed += [check.name for check in proposal.checks if not check.passed]
    assert failed == ["readable", "readable", "solvable"]
    assert service.states() == before
    assert model.requests[0].sampling.json_schema is not None


async def test_an_open_answer_that_holds_is_measured(service: Service) -> None:
    model = FakeGenerate(['{"shelf": "4", "colour": "red"}'])
    adapter = make_adapter(service.database, lambda _: OpenShelf(), model)
    outcome = service.outcome(service.first, 8, settings=adapt_settings(max_pending=9))
    (proposal,) = await adapter.handle(outcome)
    assert proposal.state == "pending"
    assert service.stored(proposal).candidate_id is not None


async def test_an_answer_that_asks_what_a_held_out_task_asks_is_no_candidate(
    service: Service,
) -> None:
    model = FakeGenerate(['{"shelf": "3", "colour": "red"}'])  # the pool's held-out task
    adapter = make_adapter(service.database, lambda _: OpenShelf(), model)
    outcome = service.outcome(service.first, 8, settings=adapt_settings(max_pending=9))
    (proposal,) = await adapter.handle(outcome)
    assert (proposal.state, proposal.candidate_id) == ("invalid", None)
    assert "not_held_out" in {check.name for check in proposal.checks if not check.passed}


class Stepped(ShelfFamily):
    """A shelf has a sub-goal for each of its number; the agent begins with the first if the ball is blue."""

    def sub_goals(self, task: Task, actions: Sequence[str], options: Params) -> list[SubGoal]:
        begun = task.params["colour"] == "blue"
        count = int(str(task.params["shelf"]))
        return [
            SubGoal(f"rung {n}", 0 if begun and not n else n if n < len(actions) else None)
            for n in range(count)
        ]


@pytest.mark.parametrize(
    ("shelf_of", "actions", "colours", "lowest"),
    [("first", 0, {"red", "green"}, 1), ("second", 1, {"red", "green", "blue"}, 2)],
)
async def test_an_easier_task_leaves_the_sub_goal_that_was_missed(
    service: Service, shelf_of: str, actions: int, colours: set[str], lowest: int
) -> None:
    model = FakeGenerate(first_choice)
    adapter = make_adapter(service.database, lambda _: Stepped(), model)
    steps = (("climb", "up", ()),) * actions
    notes = (DiagnosisNote(trajectory_id="t", success=False, steps=steps),)
    settings = adapt_settings(max_pending=9, keep_goal=False, max_drift=1.0)
    task = getattr(service, shelf_of)
    (proposal,) = await adapter.handle(service.outcome(task, 0, notes=notes, settings=settings))
    lines = str(model.requests[-1].sampling.regex).split("|")
    answers = [dict(part.split(": ") for part in line.split(", ")) for line in lines]
    assert {answer["colour"] for answer in answers} == colours
    assert min(int(answer["shelf"]) for answer in answers) == lowest
    assert proposal.direction == "easier"


class Replayed(ShelfFamily):
    """The shelves below a ball's are the starts of an easier task: one for each action of a success."""

    def with_success(self, task: Task, actions: Sequence[str]) -> Task:
        return task.model_copy(update={"params": {**task.params, "shelf": len(actions)}})

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        shelves = tuple(str(n) for n in range(1, int(str(task.params["shelf"]))))
        return RewriteMenu(description="A shelf.", fields={"shelf": shelves, "colour": ("blue",)})

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        assert task.params["shelf"] == 3, "the task knows the success"
        return super().apply_rewrite(task, answer)


@pytest.mark.parametrize(("successes", "shelves"), [(1, ["1", "2"]), (8, [])])
async def test_an_easier_task_may_begin_inside_the_shortest_success(
    service: Service, successes: int, shelves: list[str]
) -> None:
    model = FakeGenerate(first_choice)
    adapter = make_adapter(service.database, lambda _: Replayed(), model)
    notes = [
        DiagnosisNote(trajectory_id=f"t{n}", success=n > 2, steps=(("climb", "up", ()),) * n)
        for n in (5, 2, 3)
    ]
    settings = adapt_settings(max_pending=9, max_drift=1.0)
    outcome = service.outcome(service.first, successes, notes=notes, settings=settings)
    (proposal,) = await adapter.handle(outcome)
    lines = [str(request.sampling.regex) for request in model.requests[-1:]]
    assert lines == ["|".join(f"shelf: {n}, colour: blue" for n in shelves)] * bool(shelves)
    direction, state = ("easier", "pending") if shelves else ("harder", "invalid")
    assert (proposal.direction, proposal.state) == (direction, state)
