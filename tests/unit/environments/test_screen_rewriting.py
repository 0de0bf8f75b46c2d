"""Rewriting tasks at a screen by a scripted rewriter: instruction and verifier change together, or a hint comes or goes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from environments.desktop.family import DesktopFamily
from environments.osworld.family import OsworldFamily
from services.env_adapter.adaptation.candidates import CandidateChecks, Checked
from services.env_adapter.adaptation.measurement import OpenSlot
from services.env_adapter.adaptation.rewriter import choices, line_of
from tests.sections import adapt_settings
from tests.unit.environments.fake_control_server import FakeControlServer
from tests.unit.environments.tasks import task_of
from tests.unit.environments.test_osworld import TASK
from triforge.config import EnvAdapterSection
from triforge.errors import InputError
from triforge.rollout.protocols import EnvironmentFamily, TaskDraft
from triforge.testing.check_environment import check_environment, not_applicable, require
from triforge.types import Direction, Task

DESKTOP, OSWORLD = DesktopFamily(), OsworldFamily()
LOOSE = {
    "func": "check_include_exclude",
    "result": {"type": "vm_command_line", "command": "snap list", "shell": True},
    "expected": {"type": "rule", "rules": {"include": ["spotify"], "exclude": []}},
}
MACHINE: dict[str, Any] = {
    **TASK,
    "variants": [
        {"name": "snap", "instruction": "Install the snap of Spotify.", "evaluator": LOOSE, "hint": "Ask snap."},
        {"name": "any", "instruction": TASK["instruction"], "evaluator": TASK["evaluator"]},
    ],
}  # fmt: skip


def generated(**options: Any) -> Task:
    wanted = {"sorts": ["rename"], **options}
    return task_of(DESKTOP, DESKTOP.generate(count=1, seed=3, options=wanted)[0])


def offered(family: EnvironmentFamily, task: Task, direction: Direction) -> list[str]:
    """The choices of a direction, as lines."""
    return [line_of(answer) for answer in family.rewrite_menu(task, direction).combinations]


def proposed(family: EnvironmentFamily, task: Task, answer: str, direction: Direction) -> Checked:
    """Check the answer of a rewriter."""
    menu = choices(family.rewrite_menu(task, direction), lambda _: True, seed=0)
    slot = OpenSlot(parent=task, root=task, earlier=(task,))
    machines = EnvAdapterSection(options={"machines": ["http://x"]})
    settings = adapt_settings(env_adapter=machines)
    return asyncio.run(CandidateChecks().first_proved(family, slot, [answer], menu, settings))


def test_a_generated_task_of_the_desktop_may_have_further_subtasks_and_a_hint() -> None:
    task = generated()
    assert offered(DESKTOP, task, "harder") == [
        "variant: 2 subtasks, hint: no, start: whole task", "variant: 3 subtasks, hint: no, start: whole task",
    ]  # fmt: skip
    assert offered(DESKTOP, task, "easier") == ["variant: 1 subtask, hint: yes, start: whole task"]
    draft = DESKTOP.apply_rewrite(
        task, {"variant": "3 subtasks", "hint": "no", "start": "whole task"}
    )
    made = DESKTOP.read(draft.params)
    assert draft.instruction.startswith(task.instruction)
    assert draft.instruction.count(" Then ") == 2
    assert len(made.solution) == 3
    assert len(made.evaluator.funcs) >= 3
    assert all(result.passed for result in DESKTOP.check_rewrite(task, draft))
    assert DESKTOP.validate(draft.params) == draft
    assert 0.0 < DESKTOP.drift(task.params, draft.params) < 0.75
    harder = task_of(DESKTOP, draft.params)
    assert offered(DESKTOP, harder, "harder") == []
    assert len(offered(DESKTOP, harder, "easier")) == 5 + 2  # two starts inside its solution
    hinted = DESKTOP.apply_rewrite(
        task, {"variant": "1 subtask", "hint": "yes", "start": "whole task"}
    )
    assert hinted.instruction.endswith("Hint: The terminal knows the command mv.")
    assert (
        offered(DESKTOP, task_of(DESKTOP, hinted.params), "harder")[0]
        == "variant: 1 subtask, hint: no, start: whole task"
    )


def test_without_spare_subtasks_the_generated_tasks_are_what_they_were() -> None:
    task = generated(spare=0)
    assert len(task.params["variants"]) == 1  # type: ignore[arg-type]
    assert offered(DESKTOP, task, "harder") == []
    with pytest.raises(InputError, match="field files"):
        generated(spare=3, files=[0, 4])


def test_a_task_file_changes_verifier_and_instruction_together() -> None:
    task = task_of(OSWORLD, MACHINE)
    assert offered(OSWORLD, task, "harder") == []
    found = proposed(OSWORLD, task, "variant: snap, hint: yes", "easier")
    assert found.candidate is not None
    assert found.candidate.instruction == "Install the snap of Spotify. Hint: Ask snap."
    assert OSWORLD.read(found.candidate.params).evaluator.result == LOOSE["result"]
    left = {check.name for check in found.checks if "left to the measurement" in check.detail}
    assert left == {"not_satisfied_at_reset", "solvable", "instruction_agrees"}


def test_a_task_file_without_variants_gets_a_hint_in_the_models_words() -> None:
    task = task_of(OSWORLD, TASK)
    menu = OSWORLD.rewrite_menu(task, "easier")
    assert (menu.combinations, "hint" in (menu.json_schema or "")) == ((), True)
    assert OSWORLD.rewrite_menu(task, "harder").json_schema is None
    answer = json.dumps({"hint": "Open a terminal;\n use <|im_end|> snap."})
    found = proposed(OSWORLD, task, answer, "easier")
    assert found.candidate is not None
    assert found.candidate.instruction.startswith(
        f"{TASK['instruction']} Hint: Open a terminal; use "
    )
    assert "<|" not in found.candidate.instruction
    hinted = task_of(OSWORLD, found.candidate.params)
    assert OSWORLD.rewrite_menu(hinted, "easier").json_schema is None
    assert offered(OSWORLD, hinted, "harder") == ["variant: present, hint: no"]
    back = OSWORLD.apply_rewrite(hinted, {"variant": "present", "hint": "no"})
    assert back.params == task.params


@pytest.mark.parametrize(
    ("answer", "name", "detail"),
    [
        ("Sure!", "readable", "not JSON"),
        ("{}", "readable", "'hint' is a required property"),
        (json.dumps({"hint": "a", "evaluator": {}}), "readable", "'evaluator' was unexpected"),
        (json.dumps({"hint": "a" * 301}), "readable", "$.hint"),
        (json.dumps({"hint": " \n "}), "applicable", "field hint"),
    ],
)
def test_an_answer_that_is_no_hint_is_refused_with_the_reason(
    answer: str, name: str, detail: str
) -> None:
    found = proposed(OSWORLD, task_of(OSWORLD, TASK), answer, "easier")
    assert found.candidate is None
    failed = next(check for check in found.checks if not check.passed)
    assert (failed.name, detail in failed.detail) == (name, True)


def test_an_instruction_without_its_verifier_and_another_start_are_refused() -> None:
    task = generated()
    draft = DESKTOP.apply_rewrite(
        task, {"variant": "2 subtasks", "hint": "no", "start": "whole task"}
    )
    lies: dict[str, TaskDraft] = {
        "differs": TaskDraft(params=task.params, instruction=task.instruction),
        "verifier_belongs": TaskDraft(params=draft.params, instruction=task.instruction),
        "same_start": TaskDraft(
            params={**draft.params, "horizon": 99}, instruction=draft.instruction
        ),
        "well_formed": TaskDraft(
            params={**draft.params, "instruction": "Do nothing."}, instruction="Do nothing."
        ),
    }
    for name, lie in lies.items():
        failed = {result.name for result in DESKTOP.check_rewrite(task, lie) if not result.passed}
        assert name in failed
    other = {**task.params, "variants": [], "instruction": "Do nothing."}
    bare = task_of(DESKTOP, {**task.params, "variants": []})
    (failed,) = [
        result
        for result in DESKTOP.check_rewrite(
            bare, TaskDraft(params=other, instruction="Do nothing.")
        )
        if not result.passed
    ]
    assert failed.name == "verifier_belongs"
    for answer in (
        {"variant": "4 subtasks", "hint": "no", "start": "whole task"},
        {"variant": "1 subtask", "hint": "maybe", "start": "whole task"},
        {
            "variant": "2 subtasks",
            "hint": "no",
            "start": "after 1 action",
        },  # the present one has one
        {"variant": "2 subtasks", "hint": "no"},
        {},
    ):
        with pytest.raises(InputError, match="desktop rewrite"):
            DESKTOP.apply_rewrite(task, answer)


def test_a_variant_that_holds_before_the_first_action_is_refused() -> None:
    task = generated()
    variants: Any = task.params["variants"]
    open_door = {"func": "exact_match", "result": {"type": "exists", "path": "no"},
                 "expected": {"type": "rule", "rules": {"expected": "no"}}}  # fmt: skip
    solved = {**variants[1], "evaluator": open_door}
    with pytest.raises(InputError, match="holds already at reset"):
        DESKTOP.validate({**task.params, "variants": [variants[0], solved]})


async def test_uploaded_task_files_keep_the_contract() -> None:
    server = FakeControlServer({"which spotify": ("/usr/bin/spotify\n", "")})
    try:
        checked = await check_environment(
            OSWORLD,
            options={"machines": [server.url], "pause_s": 0.0, "start_s": 20.0},
            tasks=[TASK],
            max_steps=5,
        )
    finally:
        server.close()
    require(checked)
    skipped = {check.name for check in not_applicable(checked)}
    assert "rewrites_are_true" in skipped
    assert "open_rewrites_are_held" not in skipped
