"""The choice of the candidate: the first answer with all proofs, and all checks on record."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from services.env_adapter.adaptation.candidates import CandidateChecks, Checked, Solver
from services.env_adapter.adaptation.measurement import OpenSlot
from services.env_adapter.adaptation.rewriter import Choices, line_of
from services.env_adapter.adaptation.settings import AdaptSettings
from tests.sections import adapt_settings
from triforge.errors import PolicyError
from triforge.rollout.adapting import PROOFS, drift
from triforge.rollout.protocols import EnvironmentFamily, Generate, TaskDraft
from triforge.testing.fakes import FakeFamily, FakeGenerate
from triforge.types import CheckResult, GenerateRequest, Params, Task

RED, BLUE, GREEN = (
    line_of({"shelf": shelf, "colour": colour})
    for shelf, colour in (("1", "red"), ("2", "blue"), ("3", "green"))
)
BROKEN, UNKNOWN = "shelf: 9, colour: red", "shelf: 4, colour: mauve"
NEAR = "shelf: 5, colour: red"
OFFERED = Choices(
    {
        line: dict(part.split(": ") for part in line.split(", "))
        for line in (RED, BLUE, GREEN, BROKEN, UNKNOWN, NEAR)
    }
)
FREE = adapt_settings(max_drift=1.0)


def version(family: EnvironmentFamily, number: int, params: Params) -> Task:
    draft = family.validate(params)
    return Task(
        id=f"t-v{number}",
        pool_id="p",
        slot="t",
        version=number,
        family=family.name,
        instruction=draft.instruction,
        params=draft.params,
    )


def opening(family: EnvironmentFamily, *versions: Params) -> OpenSlot:
    known = tuple(version(family, number, params) for number, params in enumerate(versions))
    return OpenSlot(parent=known[0], root=known[0], earlier=known)


def check(
    family: EnvironmentFamily, *answers: str, settings: AdaptSettings = FREE, **more: Any
) -> Checked:
    had = opening(family, {"shelf": 1, "colour": "red"}, {"shelf": 2, "colour": "blue"})
    return asyncio.run(
        CandidateChecks(**more).first_proved(family, had, answers, OFFERED, settings)
    )


def failures(
    family: EnvironmentFamily, *answers: str, settings: AdaptSettings = FREE
) -> list[tuple[str, str]]:
    """(check, the answer that failed it) of answers that led to nothing."""
    found = check(family, *answers, settings=settings)
    assert found.candidate is None
    return [(check.name, check.detail.split(":")[0]) for check in found.checks if not check.passed]


class Watched:
    """A family that notes the threads in which tasks are rewritten."""

    def __init__(self, family: EnvironmentFamily) -> None:
        self.family, self.threads = family, set[threading.Thread]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.family, name)

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        self.threads.add(threading.current_thread())
        return self.family.apply_rewrite(task, answer)


def test_tasks_are_rewritten_outside_of_the_event_loops_thread(
    shelf_family: EnvironmentFamily,
) -> None:
    watched = Watched(shelf_family)
    assert check(cast("EnvironmentFamily", watched), RED, GREEN).candidate is not None
    assert watched.threads
    assert threading.main_thread() not in watched.threads


def test_of_the_answers_that_pass_every_check_the_smallest_change_is_taken(
    shelf_family: EnvironmentFamily,
) -> None:
    found = check(shelf_family, GREEN, UNKNOWN, NEAR, BROKEN)
    assert found.candidate is not None
    assert found.candidate.instruction == "Put a red ball on shelf 5."
    assert found.drift == 0.5
    results = [(check.name, check.passed, check.detail.split(":")[0]) for check in found.checks]
    names = [
        "follows_from_goal",
        "near_root",
        "new_in_slot",
        "not_held_out",
        "differs",
        "solvable",
        "not_satisfied_at_reset",
        "instruction_agrees",
    ]
    assert results == [
        ("applicable", False, "answer 2"),
        *((name, True, "answer 3") for name in names),
    ]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((BROKEN,), ["solvable 1"]),
        ((RED, BLUE), ["new_in_slot 1", "differs 1", "new_in_slot 2"]),  # the task and its past
        (("nonsense", UNKNOWN), ["readable 1", "applicable 2"]),
        (("nonsense", "nonsense"), ["readable 1", "not_repeated 2"]),
    ],
)
def test_answers_that_are_no_candidates_are_on_record(
    shelf_family: EnvironmentFamily, answers: tuple[str, ...], expected: list[str]
) -> None:
    failed = failures(shelf_family, *answers)
    assert [f"{name} {answer.removeprefix('answer ')}" for name, answer in failed] == expected


def test_an_ancestor_may_come_back_and_what_was_tried_against_the_parent_may_not(
    shelf_family: EnvironmentFamily,
) -> None:
    root, parent, rejected = (
        version(shelf_family, number, {"shelf": shelf, "colour": colour})
        for number, (shelf, colour) in enumerate([(1, "red"), (3, "green"), (2, "blue")])
    )
    had = OpenSlot(parent=parent, root=root, earlier=(root, parent, rejected))
    for answer, passed in ((RED, True), (GREEN, False), (BLUE, False)):
        made = CandidateChecks().first_proved(shelf_family, had, [answer], OFFERED, FREE)
        found = asyncio.run(made)
        assert ("new_in_slot", passed) in [(check.name, check.passed) for check in found.checks]


def test_a_task_too_far_from_the_root_is_refused_with_the_distance(
    shelf_family: EnvironmentFamily,
) -> None:
    found = check(shelf_family, GREEN, settings=adapt_settings(max_drift=0.5))
    assert found.candidate is None
    (refused,) = [check for check in found.checks if not check.passed]
    assert refused.name == "near_root"
    assert "1.00 from the root, allowed 0.50 (adaptation.max_drift)" in refused.detail


def test_an_instruction_that_does_not_follow_from_the_goal_is_refused(
    shelf_family: EnvironmentFamily,
) -> None:
    class Stale(type(shelf_family)):  # type: ignore[misc]
        """Changes the goal and keeps the sentence, as the released rewriter does."""

        def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
            params = super().apply_rewrite(task, answer).params
            return TaskDraft(params=params, instruction=task.instruction)

    names = [name for name, _ in failures(Stale(), GREEN)]
    assert names == ["follows_from_goal", "instruction_agrees"]


# ---- what a family does not prove itself ----

TWO, FOUR = "target: 2", "target: 4"
COUNTS = Choices({line: {"target": line[-1]} for line in (TWO, FOUR)})


def upwards(_: GenerateRequest) -> str:
    return "up"


def count(family: FakeFamily, solver: Generate | None, **more: Any) -> Checked:
    had = opening(family, {"target": 3})
    checks = CandidateChecks(Solver(solver) if solver else None)
    settings = adapt_settings(max_drift=1.0, solver_tries=4, **more)
    return asyncio.run(checks.first_proved(family, had, [TWO], COUNTS, settings))


def by_name(found: Checked) -> dict[str, CheckResult]:
    return {check.name: check for check in found.checks}


def test_gold_answers_prove_that_a_task_can_be_solved_but_not_what_it_announces() -> None:
    found = count(FakeFamily(), None)
    made = by_name(found)
    assert found.candidate is None
    assert made["not_satisfied_at_reset"].passed
    assert made["solvable"].passed
    assert not made["instruction_agrees"].passed
    assert "TRIFORGE_SOLVER_URL" in made["instruction_agrees"].detail


def test_a_stronger_policy_that_wins_by_the_announcement_proves_it() -> None:
    model = FakeGenerate(upwards)
    found = count(FakeFamily(), model)
    assert found.candidate is not None
    assert "won 4 of 4 tries" in by_name(found)["instruction_agrees"].detail
    seen = model.requests[0].messages[-1].content
    assert "Count to 2." in seen
    assert {len(request.messages) for request in model.requests} == {1, 3}


def test_a_stronger_policy_that_never_wins_refutes_it() -> None:
    found = count(FakeFamily(), FakeGenerate(["down"]), max_steps=3)
    assert found.candidate is None
    assert "won 0 of 4 tries" in by_name(found)["instruction_agrees"].detail


def test_what_the_solvers_infrastructure_loses_is_no_refutation_and_no_proof() -> None:
    found = count(FakeFamily(), FakeGenerate([PolicyError("engine away")]))
    detail = by_name(found)["instruction_agrees"].detail
    assert found.candidate is None
    assert "won 0 of 0 tries" in detail
    assert "engine away" in detail


def test_without_gold_the_solver_proves_both() -> None:
    class Secretive(FakeFamily):
        def gold(self, task: Task, options: Params) -> Sequence[str] | None:
            return None

    made = by_name(count(Secretive(), FakeGenerate(upwards)))
    assert made["solvable"].passed
    assert made["solvable"].detail == made["instruction_agrees"].detail


class Patient(FakeFamily):
    """Leaves missing proofs to the measurement."""

    measured = PROOFS

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:
        return None


def test_without_a_solver_a_family_may_leave_proofs_to_the_measurement() -> None:
    family = Patient()
    found = count(family, None)
    assert found.candidate is not None
    assert family.made == [], "nothing is played for them"
    made = by_name(found)
    assert [made[name].passed for name in PROOFS] == [True] * 3
    assert all("left to the measurement" in made[name].detail for name in PROOFS)


def test_a_solver_is_asked_before_the_measurement() -> None:
    found = count(Patient(), FakeGenerate(["down"]), max_steps=3)
    assert found.candidate is None
    assert "won 0 of 4 tries" in by_name(found)["instruction_agrees"].detail


def test_a_task_that_nothing_wins_is_caught() -> None:
    class Generous(FakeFamily):
        """Pays whatever is answered."""

        def make(self, options: Params) -> Any:
            made = super().make(options)
            step = made.step

            async def pay(response: str) -> Any:
                from dataclasses import replace

                return replace(await step(response), done=True, success=True)

            made.step = pay  # type: ignore[method-assign]
            return made

    found = count(Generous(), FakeGenerate(upwards))
    assert found.candidate is None
    assert not by_name(found)["not_satisfied_at_reset"].passed


def test_an_environment_that_breaks_makes_a_candidate_unplayable_not_an_error() -> None:
    found = count(FakeFamily(raise_at=0), FakeGenerate(upwards))
    assert found.candidate is None
    assert not by_name(found)["playable"].passed


# ---- distance ----


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1}, 0.0),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, 0.5),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 2, 3]}}, 1 / 3),
        ({"a": 1}, {"b": 1}, 1.0),
        ({}, {}, 0.0),
    ],
)
def test_without_a_measure_of_the_family_drift_is_the_share_of_parameters_that_differ(
    before: Params, after: Params, expected: float
) -> None:
    assert drift(object(), before, after) == pytest.approx(expected)
