"""Uploaded problems, written anew by a scripted rewriter: refusals with their reasons, and proofs by running programs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from environments.code.family import CodeFamily
from environments.code.mutations import MOST, mutants
from services.env_adapter.adaptation.candidates import CandidateChecks, Checked
from services.env_adapter.adaptation.measurement import OpenSlot
from services.env_adapter.adaptation.rewriter import Choices, choices
from tests.sections import adapt_settings
from tests.unit.environments.tasks import task_of
from triforge.errors import InputError
from triforge.rollout.protocols import TaskDraft
from triforge.sandbox.client import Sandbox
from triforge.testing.check_environment import check_environment, not_applicable, require
from triforge.types import CheckResult, Params, Task

ROW: Params = {
    "question": "Read a number n. Print n plus one.",
    "tests": [{"input": f"{n}\n", "output": f"{n + 1}\n"} for n in (1, 5, 20)],
    "public": 2,
    "reference": "print(int(input()) + 1)",
    "time_limit_s": 2.0,
}
GOOD: dict[str, Any] = {
    "question": "Read a number n. Print n plus one, or n where it is even.",
    "tests": [{"input": f"{n}\n", "output": f"{n + n % 2}\n"} for n in (1, 4, 7, 10)],
    "reference": "n = int(input())\nprint(n + 1 if n % 2 else n)",
}


@pytest.fixture(scope="module")
def family(sandbox: Sandbox) -> CodeFamily:
    return CodeFamily(sandbox)


@pytest.fixture(scope="module")
def parent(family: CodeFamily) -> Task:
    return task_of(family, ROW)


def proposed(family: CodeFamily, parent: Task, *answers: str, drift: float = 0.75) -> Checked:
    """Check the answers of a rewriter."""
    offered = choices(family.rewrite_menu(parent, "harder"), lambda _: True, seed=0)
    slot = OpenSlot(parent=parent, root=parent, earlier=(parent,))
    checks = CandidateChecks().first_proved(
        family, slot, answers, offered, adapt_settings(max_drift=drift)
    )
    return asyncio.run(checks)


def refused(found: Checked) -> CheckResult:
    """The first check that failed."""
    assert found.candidate is None
    return next(check for check in found.checks if not check.passed)


def test_the_menu_shows_the_problem_and_asks_for_all_parts_of_another(
    family: CodeFamily, parent: Task
) -> None:
    for direction in ("harder", "easier"):
        menu = family.rewrite_menu(parent, direction)
        assert "Print n plus one" in menu.description
        assert direction in menu.description
        assert set(json.loads(menu.json_schema or "")["required"]) == {
            "question",
            "tests",
            "reference",
        }
    assert choices(menu, lambda _: False, seed=0) == Choices({}, menu.json_schema)


def test_question_tests_and_reference_change_together_and_are_proved_by_running_them(
    family: CodeFamily, parent: Task
) -> None:
    found = proposed(family, parent, json.dumps(GOOD))
    assert found.candidate is not None
    made = {check.name: check for check in found.checks}
    assert all(check.passed for check in found.checks)
    assert "4 of 4 tests" in made["solvable"].detail
    assert "changed references fail" in made["mutants_fail"].detail
    assert "left to the measurement" in made["instruction_agrees"].detail
    assert found.drift is not None
    assert 0.0 < found.drift < 0.75
    params = found.candidate.params
    assert (params["public"], params["time_limit_s"]) == (2, 2.0)
    assert "or n where it is even" in found.candidate.instruction
    assert family.validate(params) == found.candidate


CONSTANT = [{"input": f"{n}\n", "output": "yes\n"} for n in range(4)]
BLIND = [{"input": f"{n}\n", "output": f"{n}\n"} for n in (2, 4, 6, 8)]


@pytest.mark.parametrize(
    ("changes", "name", "detail"),
    [
        (None, "readable", "not JSON"),
        ({"reference": None}, "readable", "is not of type 'string'"),
        ({"tests": GOOD["tests"][:3]}, "readable", "is too short"),
        ({"tests": GOOD["tests"][:1] * 4}, "well_formed", "1 different inputs, at least 4"),
        ({"question": "Read a number n. Print n plus one."}, "differs", ""),
        ({"question": "Sort all words by length."}, "near_root", "adaptation.max_drift"),
        ({"reference": "print(int(input()) + 1)"}, "follows_from_goal", "does not pass test 2 of 4"),
        ({"reference": "print('yes')", "tests": CONSTANT}, "not_satisfied_at_reset", "commonest output"),
        ({"reference": "n = int(input())\nprint(n)", "tests": BLIND}, "not_satisfied_at_reset", "the input"),
        ({"reference": "n = int(input())\nprint(n + n if n < 100 else 0)",
          "tests": [{"input": f"{n}", "output": f"{n + n}"} for n in range(1, 5)]}, "mutants_fail", "2 of 5"),
    ],
)  # fmt: skip
def test_an_answer_that_does_not_hold_is_refused_with_the_reason(
    family: CodeFamily, parent: Task, changes: dict[str, Any] | None, name: str, detail: str
) -> None:
    answer = json.dumps({**GOOD, **changes}) if changes is not None else "Sure! Here it is:"
    check = refused(proposed(family, parent, answer))
    assert check.name == name
    assert detail in check.detail


def test_a_missing_field_is_refused_with_and_without_the_schema(
    family: CodeFamily, parent: Task
) -> None:
    less = {name: value for name, value in GOOD.items() if name != "reference"}
    check = refused(proposed(family, parent, json.dumps(less)))
    assert (check.name, "'reference' is a required property" in check.detail) == ("readable", True)
    for answer in ({}, {**GOOD, "tests": "[]"}, {**GOOD, "tests": "no list"}):
        with pytest.raises(InputError, match="code rewrite: field"):
            family.apply_rewrite(parent, answer)


def test_a_statement_that_is_not_the_tasks_own_and_a_changed_kind_are_refused(
    family: CodeFamily, parent: Task
) -> None:
    answer = {k: v if isinstance(v, str) else json.dumps(v) for k, v in GOOD.items()}
    draft = family.apply_rewrite(parent, answer)
    stale = TaskDraft(params=draft.params, instruction=parent.instruction)
    no_reference = TaskDraft(
        params={**draft.params, "reference": ""}, instruction=draft.instruction
    )
    for lie in (stale, no_reference):
        (check, *_) = family.check_rewrite(parent, lie)
        assert (check.name, check.passed) == ("well_formed", False)


def test_uploaded_rows_keep_the_contract(family: CodeFamily) -> None:
    checked = asyncio.run(check_environment(family, tasks=[ROW], max_steps=3))
    require(checked)
    skipped = {check.name for check in not_applicable(checked)}
    assert skipped == {
        "generate_is_deterministic",
        "rewrites_are_true",
        "false_rewrites_are_caught",
    }


def test_every_mutant_differs_from_its_source_in_one_place() -> None:
    source = "n = int(input())\nif n < 3 and n > 1:\n    n += 1\nprint(n * 2 if n in (4, 5) else n % 7)\n"
    made = mutants(source)
    assert len(made) == len(set(made)) == MOST
    assert mutants("print(input())") == []
